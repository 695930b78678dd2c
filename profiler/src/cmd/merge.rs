//! `profiler merge`: one profile out of several.

use std::path::{Path, PathBuf};

use crate::error::{Failure, exit};
use crate::export::{Exporter as _, Json};
use crate::profile::unlike::What;
use crate::profile::{Merge, MergeError, OutputFile, Series};
use crate::progress::Progress;

/// What to merge, and where to.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// Files of runs and series; `-` is standard input.
    pub files: &'a [PathBuf],
    /// The file of the sum; `-` is standard output.
    pub output: &'a Path,
    /// What the profiles may differ in.
    pub allowed: &'a [What],
    /// Nothing on standard error but errors.
    pub quiet: bool,
}

/// Merges all runs of `options.files`. One file is held in memory at a time.
///
/// # Errors
/// If one cannot be read, is unlike the first, or is there twice; then nothing is written.
pub fn run(options: &Options<'_>) -> Result<(), Failure> {
    let output = OutputFile::open(options.output)?;
    let mut merge = Merge::new(options.allowed);
    let mut with_intervals = 0_u64;
    for file in options.files {
        let series = Series::read(file)?;
        let several = series.runs.len() > 1;
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
        for (at, run) in series.runs.into_iter().enumerate() {
            with_intervals += u64::from(!run.intervals.is_empty());
            let name = if several { format!("{name}#{}", at + 1) } else { name.to_string() };
            merge.add(run, &name).map_err(|error| refused(&error))?;
        }
    }
    let profile = merge.finish().map_err(|error| refused(&error))?;
    profile.check().map_err(|error| {
        Failure::new(exit::INTERNAL, format!("the merged profile contradicts itself: {error}"))
    })?;
    output.commit(&Json.serialize(&profile))?;
    let progress = Progress::new(options.quiet);
    progress.say(&format!(
        "merged runs: {}, with {} calls of {} handlers",
        profile.sources.len(),
        profile.calls(),
        profile.handlers.len()
    ));
    if with_intervals > 0 {
        progress.say(&format!(
            "the intervals of {with_intervals} of them are not in the sum: their windows are not one"
        ));
    }
    Ok(())
}

fn refused(error: &MergeError) -> Failure {
    let code = match error {
        MergeError::Unlike { .. } | MergeError::Twice { .. } => exit::NOT_COMPARABLE,
        MergeError::Overflow { .. } | MergeError::Encode(_) => exit::BAD_INPUT,
        MergeError::Nothing => exit::USAGE,
    };
    Failure::new(code, error.to_string())
}
