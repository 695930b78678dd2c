//! `profiler merge`: the exact sum of several recordings.

use std::path::Path;

use crate::atomic_file::OutputFile;
use crate::cli::MergeArgs;
use crate::error::{Failure, exit};
use crate::progress::Progress;
use crate::recording::{Merge, MergeError, Series};

/// Merges all runs of `args.files`.
///
/// # Errors
/// If one cannot be read, differs from the first, or is given twice; then nothing is written.
pub fn run(args: &MergeArgs) -> Result<(), Failure> {
    let output = OutputFile::open(&args.output)?;
    let mut merge = Merge::new(&args.allowed);
    let mut with_intervals = 0_u64;
    for file in &args.files {
        with_intervals += add(&mut merge, file, Series::read(file)?)?;
    }
    let recording = merge.finish().map_err(|error| refused(&error))?;
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
    if with_intervals > 0 {
        progress.say(&format!(
            "{with_intervals} of them have intervals, which are left out: a sum has no single window"
        ));
    }
    Ok(())
}

/// Adds all runs of a file; returns how many of them have intervals.
fn add(merge: &mut Merge<'_>, file: &Path, series: Series) -> Result<u64, Failure> {
    let several = series.runs.len() > 1;
    let name = file.display();
    let mut with_intervals = 0;
    for (at, run) in series.runs.into_iter().enumerate() {
        with_intervals += u64::from(!run.intervals.is_empty());
        let name = if several { format!("{name}#{}", at + 1) } else { name.to_string() };
        merge.add(run, &name).map_err(|error| refused(&error))?;
    }
    Ok(with_intervals)
}

fn refused(error: &MergeError) -> Failure {
    let code = match error {
        MergeError::Unlike { .. } | MergeError::Twice { .. } => exit::NOT_COMPARABLE,
        MergeError::Overflow { .. } | MergeError::TooMany { .. } => exit::BAD_INPUT,
        MergeError::Nothing => exit::USAGE,
    };
    Failure::new(code, error.to_string())
}
