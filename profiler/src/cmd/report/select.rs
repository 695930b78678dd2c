//! Selects runs and handlers of a file.

use std::path::Path;

use super::Options;
use crate::error::{Failure, exit};
use crate::export::Format;
use crate::recording::{Recording, Series};

/// Reads the selected runs and handlers of `file`.
pub(super) fn read(file: &Path, options: &Options<'_>) -> Result<Series, Failure> {
    let mut series = Series::read(file)?;
    if let Some(number) = options.run {
        let all = series.runs.len();
        if number == 0 || number > all {
            let message = format!("{} has no run {number}: give 1 to {all}", file.display());
            return Err(Failure::new(exit::USAGE, message));
        }
        let run = series.runs.swap_remove(number - 1);
        series.runs = vec![run];
    }
    keep_handlers(&mut series, file, options.handlers)?;
    Ok(series)
}

fn keep_handlers(series: &mut Series, file: &Path, wanted: &[String]) -> Result<(), Failure> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut patterns = Vec::new();
    for text in wanted {
        let pattern = glob::Pattern::new(text).map_err(|error| {
            Failure::new(exit::USAGE, format!("invalid glob `{text}`: {error}"))
        })?;
        if !series.runs.iter().flat_map(|run| &run.handlers).any(|h| pattern.matches(&h.name)) {
            let message =
                format!("{} has no handler `{text}`: its table lists them", file.display());
            return Err(Failure::new(exit::NO_TARGET, message));
        }
        patterns.push(pattern);
    }
    for run in &mut series.runs {
        run.keep_handlers(|handler| patterns.iter().any(|pattern| pattern.matches(&handler.name)));
    }
    Ok(())
}

/// The only run of `series`.
pub(super) fn one<'a>(
    series: &'a Series,
    file: &Path,
    format: Format,
) -> Result<&'a Recording, Failure> {
    match series.runs.as_slice() {
        [recording] => Ok(recording),
        _ => Err(several(file, series, format)),
    }
}

/// A format holds one run, and `series` has several.
pub(super) fn several(file: &Path, series: &Series, format: Format) -> Failure {
    let message = format!(
        "{} has {} runs, and {format} holds one: choose it with --run",
        file.display(),
        series.runs.len()
    );
    Failure::new(exit::USAGE, message)
}
