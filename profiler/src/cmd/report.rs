//! `profiler report`: a run from its file, as a table or in another format.

use std::io::{self, Write};
use std::path::Path;

use crate::atomic_file::OutputFile;
use crate::error::{Failure, exit};
use crate::export::plot::plots;
use crate::export::table;
use crate::export::{Exporter as _, Format, Html, Table, Unit, repeats};
use crate::profile::{Profile, ReadError, Series};

/// What to report, and how.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// The file; `-` is standard input.
    pub file: &'a Path,
    /// A second file that is laid over the first, in HTML.
    pub other: Option<&'a Path>,
    /// The format; without it what the ending of `output` tells, else the table.
    pub format: Option<Format>,
    /// Where it goes; without it to the caller's output.
    pub output: Option<&'a Path>,
    /// The only run of a series that is wanted, from 1.
    pub run: Option<usize>,
    /// Names and globs of the only handlers that are wanted; empty is all.
    pub handlers: &'a [String],
    /// Whether each handler is plotted below the table.
    pub plot: bool,
    /// Unit of the durations.
    pub unit: Unit,
    /// Columns of the terminal; `None` never wraps.
    pub width: Option<u16>,
}

/// Why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file is no profile.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The table could not be written.
    #[error("cannot write the report: {0}: write it elsewhere")]
    Write(#[source] io::Error),
}

/// Makes the report of `options.file` and writes it to `out`, or to `options.output` in one step.
///
/// # Errors
/// If the file is no sound profile or series, has no such run or handler, the format holds one run
/// and there are several, or the output cannot be written. A reader that has seen enough and closes
/// the pipe is no error.
pub fn run(options: &Options<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let output = options.output.map(OutputFile::open).transpose()?;
    let format = options.format.or_else(|| options.output.and_then(Format::of_file));
    let format = format.unwrap_or(Format::Table);
    if options.other.is_some() && format != Format::Html {
        let message = format!(
            "two profiles are laid over each other in html alone, and the format is {format}: say \
             --format html, or use `profiler compare`"
        );
        return Err(Failure::new(exit::USAGE, message));
    }
    if options.plot && format != Format::Table {
        let message = format!("--plot goes below a table, and the format is {format}");
        return Err(Failure::new(exit::USAGE, message));
    }
    let series = read(options.file, options)?;
    let width = if output.is_none() { options.width } else { None };
    let mut bytes = match options.other {
        Some(other) => {
            let second = read(other, options)?;
            let (first, second) =
                (one(&series, options.file, format)?, one(&second, other, format)?);
            let (name, other) = (options.file.to_string_lossy(), other.to_string_lossy());
            Html.overlay((&name, first), (&other, second))
        }
        None => render(&series, format, options.unit, width)
            .ok_or_else(|| several(options.file, &series, format))?,
    };
    if options.plot {
        bytes.extend(series.runs.iter().flat_map(|run| plots(run).into_bytes()));
    }
    match output {
        Some(output) => Ok(output.commit(&bytes)?),
        None => Ok(write(out, &bytes).map_err(ReportError::Write)?),
    }
}

/// The only run of `series`.
fn one<'a>(series: &'a Series, file: &Path, format: Format) -> Result<&'a Profile, Failure> {
    match series.runs.as_slice() {
        [profile] => Ok(profile),
        _ => Err(several(file, series, format)),
    }
}

fn several(file: &Path, series: &Series, format: Format) -> Failure {
    let message = format!(
        "{} holds {} runs, and {format} holds one: say which with --run",
        file.display(),
        series.runs.len()
    );
    Failure::new(exit::USAGE, message)
}

/// The runs and handlers of `file` that are wanted.
fn read(file: &Path, options: &Options<'_>) -> Result<Series, Failure> {
    let mut series = Series::read(file)?;
    if let Some(number) = options.run {
        let all = series.runs.len();
        if number == 0 || number > all {
            let message = format!("{} has no run {number}: runs are 1 to {all}", file.display());
            return Err(Failure::new(exit::USAGE, message));
        }
        let run = series.runs.swap_remove(number - 1);
        series.runs = vec![run];
    }
    keep_handlers(&mut series, file, options.handlers)?;
    Ok(series)
}

/// Prints the profile in `path` (`-` is standard input) to `out`: byte for byte the table that the
/// run itself printed, if unit and width are the same; a series has one table of all its runs. `width` is the
/// terminal's, in columns; `None` never wraps.
///
/// # Errors
/// If the file is no sound profile, or `out` cannot be written. A reader that has seen enough and
/// closes the pipe is no error.
pub fn report(
    path: &Path,
    unit: Unit,
    width: Option<u16>,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    let series = Series::read(path)?;
    write(out, &tables(&series, unit, width)).map_err(ReportError::Write)
}

/// Prints the table of `profile`: what a run does at its end, and [`report`] later.
///
/// # Errors
/// If `out` cannot be written, but for a closed pipe.
pub fn print(
    profile: &Profile,
    unit: Unit,
    width: Option<u16>,
    out: &mut dyn Write,
) -> io::Result<()> {
    write(out, &Table { unit, width }.serialize(profile))
}

/// Prints the table of `series`: what several runs print at their end, and [`report`] later.
///
/// # Errors
/// If `out` cannot be written, but for a closed pipe.
pub fn print_series(
    series: &Series,
    unit: Unit,
    width: Option<u16>,
    out: &mut dyn Write,
) -> io::Result<()> {
    write(out, &tables(series, unit, width))
}

/// Prints the plots of all handlers, as they stand below the table.
///
/// # Errors
/// If `out` cannot be written, but for a closed pipe.
pub fn print_plots(profiles: &[Profile], out: &mut dyn Write) -> io::Result<()> {
    profiles.iter().try_for_each(|profile| write(out, plots(profile).as_bytes()))
}

/// The bytes of `series`; `None` if the format holds one run and there are several.
fn render(series: &Series, format: Format, unit: Unit, width: Option<u16>) -> Option<Vec<u8>> {
    let exporter = format.exporter(unit, width);
    match (series.runs.as_slice(), format) {
        ([profile], _) => Some(exporter.serialize(profile)),
        (_, Format::Table) => Some(tables(series, unit, width)),
        (_, Format::Json) => Some(series.to_json()),
        (runs, _) => exporter.serialize_runs(runs),
    }
}

/// The table of the only run, of the parts of one, or of all runs together: medians and spreads.
fn tables(series: &Series, unit: Unit, width: Option<u16>) -> Vec<u8> {
    match series.runs.as_slice() {
        [profile] => Table { unit, width }.serialize(profile),
        parts if series.is_of_parts() => table::of_parts(parts, unit, width),
        runs => repeats::table(runs, unit, width),
    }
}

fn keep_handlers(series: &mut Series, file: &Path, wanted: &[String]) -> Result<(), Failure> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut patterns = Vec::new();
    for text in wanted {
        let pattern = glob::Pattern::new(text).map_err(|error| {
            Failure::new(exit::USAGE, format!("`{text}` is no name or glob: {error}"))
        })?;
        if !series.runs.iter().flat_map(|run| &run.handlers).any(|h| pattern.matches(&h.name)) {
            let message = format!(
                "{} has no handler `{text}`: look at its table for those that it has",
                file.display()
            );
            return Err(Failure::new(exit::NO_TARGET, message));
        }
        patterns.push(pattern);
    }
    for run in &mut series.runs {
        run.keep_handlers(|handler| patterns.iter().any(|pattern| pattern.matches(&handler.name)));
    }
    Ok(())
}

fn write(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Columns of the terminal that standard output is; `None` if it is none.
#[must_use]
pub fn stdout_width() -> Option<u16> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0)
}
