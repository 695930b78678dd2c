//! `profiler report`: a run from its file, as a table or in another format.

mod print;
mod select;

use std::io::Write;
use std::path::Path;

use crate::atomic_file::OutputFile;
use crate::error::{Failure, exit};
use crate::export::plot::plots;
use crate::export::{Format, Html, Unit, series};
use crate::profile::{Profile, Series};

use print::write;
pub use print::{ReportError, print, print_plots, print_series, report, stdout_width};
use select::read;

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
        None => series::render(&series, format, options.unit, width)
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
