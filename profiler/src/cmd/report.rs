//! `profiler report`: a recording as a table or in another format.

use std::io::Write;
use std::path::Path;

use crate::atomic_file::OutputFile;
use crate::cli::ReportArgs;
use crate::error::{Failure, exit};
use crate::export::{Format, Look, series};
use crate::recording::Series;
use crate::terminal::write;

/// Writes the report to `out`, fitted to a terminal of `width` columns, or atomically to the file of `--output`.
///
/// # Errors
/// If the file is not a valid recording or has no such run or handler, the format holds one run and
/// there are several, or the output cannot be written. A closed pipe is not an error.
pub fn run(args: &ReportArgs, width: Option<u16>, out: &mut dyn Write) -> Result<(), Failure> {
    let output = args.output.as_deref().map(OutputFile::open).transpose()?;
    let format = format(args).map_err(|text| Failure::new(exit::USAGE, text))?;
    let series = read(&args.file, args)?;
    let look = Look { unit: args.unit, width: width.filter(|_| output.is_none()) };
    let bytes = series::render(&series, format, &look).ok_or_else(|| {
        let message = format!(
            "{} has {} runs, and {format} holds one: choose it with --run",
            args.file.display(),
            series.runs.len()
        );
        Failure::new(exit::USAGE, message)
    })?;
    match output {
        Some(output) => Ok(output.commit(&bytes)?),
        None => write(out, &bytes).map_err(|error| super::unwritable(&error)),
    }
}

/// The format, by its name or the output's extension; or why these arguments do not go together.
fn format(args: &ReportArgs) -> Result<Format, String> {
    let output = args.output.as_deref();
    let format = args.format.or_else(|| output.and_then(Format::of_file));
    if let (None, Some(path)) = (format, output.filter(|path| path.extension().is_some())) {
        let known: Vec<String> = Format::ALL.iter().map(ToString::to_string).collect();
        return Err(format!(
            "the extension of {} is no format's: add --format ({})",
            path.display(),
            known.join(", ")
        ));
    }
    Ok(format.unwrap_or(Format::Table))
}

/// Reads the selected runs and handlers of `file`.
fn read(file: &Path, args: &ReportArgs) -> Result<Series, Failure> {
    let mut series = Series::read(file)?;
    if let Some(number) = args.run {
        let all = series.runs.len();
        if number == 0 || number > all {
            let message = format!("{} has no run {number}: give 1 to {all}", file.display());
            return Err(Failure::new(exit::USAGE, message));
        }
        series.runs = vec![series.runs.swap_remove(number - 1)];
    }
    let patterns = super::globs(&args.handlers)?;
    for pattern in &patterns {
        if !series.runs.iter().flat_map(|run| &run.handlers).any(|h| pattern.matches(&h.name)) {
            let message =
                format!("{} has no handler `{pattern}`: its table lists them", file.display());
            return Err(Failure::new(exit::NO_TARGET, message));
        }
    }
    if !patterns.is_empty() {
        for run in &mut series.runs {
            run.keep_handlers(|handler| patterns.iter().any(|glob| glob.matches(&handler.name)));
        }
    }
    Ok(series)
}
