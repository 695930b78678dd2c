//! `profiler report`: a recording as a table or in another format.

mod print;
mod select;

use std::io::Write;
use std::path::Path;

use crate::atomic_file::OutputFile;
use crate::error::{Failure, exit};
use crate::export::plot::plots;
use crate::export::{Format, Look, Unit, html, series};
use crate::recording::Recording;
use crate::terminal::write;

pub(super) use print::unwritable;
pub use print::{print_plots, print_series, stdout_width};
use select::{one, read, several};

/// Options of a report.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// The file; `-` is standard input.
    pub file: &'a Path,
    /// A second file to overlay, in HTML.
    pub other: Option<&'a Path>,
    /// The format [default: by the extension of `output`, else the table].
    pub format: Option<Format>,
    /// The output file [default: the caller's output].
    pub output: Option<&'a Path>,
    /// The only run of a series to show, from 1.
    pub run: Option<usize>,
    /// Names and globs of the handlers to show; empty is all.
    pub handlers: &'a [String],
    /// Whether each handler is plotted below the table.
    pub plot: bool,
    /// Unit of the durations.
    pub unit: Unit,
    /// Columns of the terminal; `None` never wraps.
    pub width: Option<u16>,
}

/// Writes the report of `options.file` to `out`, or atomically to `options.output`.
///
/// # Errors
/// If the file is not a valid recording or has no such run or handler, the format holds one run and
/// there are several, or the output cannot be written. A closed pipe is not an error.
pub fn run(options: &Options<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let output = options.output.map(OutputFile::open).transpose()?;
    let format = options.format.or_else(|| options.output.and_then(Format::of_file));
    if let (None, Some(path)) = (format, options.output.filter(|path| path.extension().is_some())) {
        let message = format!(
            "the extension of {} is no format's: add --format ({})",
            path.display(),
            Format::ALL.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        );
        return Err(Failure::new(exit::USAGE, message));
    }
    let format = format.unwrap_or(Format::Table);
    if options.other.is_some() && format != Format::Html {
        let message = format!(
            "only html overlays two recordings, and the format is {format}: use --format html, or \
             `profiler compare`"
        );
        return Err(Failure::new(exit::USAGE, message));
    }
    if options.plot && format != Format::Table {
        let message = format!("--plot needs the format table, and the format is {format}");
        return Err(Failure::new(exit::USAGE, message));
    }
    let series = read(options.file, options)?;
    let width = if output.is_none() { options.width } else { None };
    let mut bytes = match options.other {
        Some(other) => {
            let second = read(other, options)?;
            let (first, second) =
                (one(&series, options.file, format)?, one(&second, other, format)?);
            one_meter((options.file, first), (other, second))?;
            let (name, other) = (options.file.to_string_lossy(), other.to_string_lossy());
            html::overlay((&name, first), (&other, second))
        }
        None => {
            let look = Look { unit: options.unit, width };
            series::render(&series, format, &look)
                .ok_or_else(|| several(options.file, &series, format))?
        }
    };
    if options.plot {
        bytes.extend(series.runs.iter().flat_map(|run| plots(run).into_bytes()));
    }
    match output {
        Some(output) => Ok(output.commit(&bytes)?),
        None => write(out, &bytes).map_err(|error| unwritable(&error)),
    }
}

/// Figures of two meters have no axis in common.
fn one_meter(first: (&Path, &Recording), second: (&Path, &Recording)) -> Result<(), Failure> {
    if first.1.meter == second.1.meter {
        return Ok(());
    }
    let [(first, unit), (second, other)] =
        [first, second].map(|(file, recording)| (file.display(), recording.meter.unit()));
    let message = format!(
        "the figures of {first} are {unit} and those of {second} are {other}: measure both alike"
    );
    Err(Failure::new(exit::NOT_COMPARABLE, message))
}
