//! Arguments of `profiler merge`.

use std::path::PathBuf;

use clap::Args;

use super::by_name;
use profiler_recording::unlike::What;

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
