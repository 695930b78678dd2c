//! `profiler merge`: the exact sum of several recordings.

use std::path::Path;

use crate::atomic_file::OutputFile;
use crate::cli::MergeArgs;
use crate::error::{Failure, exit};
use crate::progress::Progress;
use crate::recording::{Merge, Series};

/// Merges all runs of `args.files`.
///
/// # Errors
/// If one cannot be read, differs from the first, or is given twice; then nothing is written.
pub fn run(args: &MergeArgs) -> Result<(), Failure> {
    let output = OutputFile::open(&args.output)?;
    let mut merge = Merge::new(&args.allowed);
    for file in &args.files {
        add(&mut merge, file, Series::read(file)?)?;
    }
    let recording = merge.finish()?;
    recording.check().map_err(|error| {
        Failure::new(exit::INTERNAL, format!("the merged recording contradicts itself: {error}"))
    })?;
    output.commit(&recording.to_json())?;
    let progress = Progress::new(args.quiet);
    progress.say(&format!(
        "merged runs: {}, with {} calls of {} handlers",
        recording.sources.len(),
        recording.calls(),
        recording.handlers.len()
    ));
    Ok(())
}

/// Adds all runs of a file.
fn add(merge: &mut Merge<'_>, file: &Path, series: Series) -> Result<(), Failure> {
    let several = series.runs.len() > 1;
    let name = file.display();
    for (at, run) in series.runs.into_iter().enumerate() {
        let name = if several { format!("{name}#{}", at + 1) } else { name.to_string() };
        merge.add(run, &name)?;
    }
    Ok(())
}
