//! `profiler merge`: the exact sum of several recordings.

use super::sides::read;
use crate::cli::merge::MergeArgs;
use profiler_base::atomic_file::OutputFile;
use profiler_base::error::Failure;
use profiler_base::progress::Progress;
use profiler_recording::Merge;

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
