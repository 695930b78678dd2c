//! `profiler merge`: the exact sum of several recordings.

use std::path::PathBuf;

use clap::Args;

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::Failure;
use profiler_base::progress::Progress;
use profiler_recording::Merge;
use profiler_recording::unlike::What;
use profiler_run::args::by_name;

use super::sides::read;

const EXAMPLES: &str = "\
Examples:
  # parts of one measurement
  profiler merge shard-*.json -o all.json
  # runs on machines with different CPUs, where that does not matter
  profiler merge a.json b.json --allow-different machine,mitigations -o both.json";

/// Arguments of `profiler merge`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct MergeArgs {
    /// Recordings (`-` is standard input).
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Write the sum to this file as JSON (`-` is standard output).
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// Merge also where the runs differ in this (repeatable, or several with commas). Clock, backend and
    /// precision are never merged.
    #[arg(long = "allow-different", value_name = "WHAT", value_delimiter = ',', value_parser = by_name::<What>())]
    pub allowed: Vec<What>,
    /// Only errors on standard error.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Merges all runs of `args.files`.
///
/// # Errors
/// If one cannot be read, differs from the first, or is given twice; then nothing is written.
pub fn run(args: &MergeArgs) -> Result<(), Failure> {
    let output = OutputFile::open(&args.output)?;
    let mut merge = Merge::new(&args.allowed);
    for file in &args.files {
        for run in read(std::slice::from_ref(file))? {
            merge.add(run.recording, &run.name)?;
        }
    }
    let recording = merge.finish()?;
    output.commit(&recording.to_json())?;
    Progress::new(args.quiet).say(&format!(
        "merged runs: {}, with {} calls of {} handlers",
        recording.sources.len(),
        recording.calls(),
        recording.handlers.len()
    ));
    Ok(())
}
