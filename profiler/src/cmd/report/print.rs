//! Printing of tables and plots.

use std::io::{self, Write};

use crate::error::{Failure, exit};
use crate::export::plot::plots;
use crate::export::{Unit, series};
use crate::recording::{Recording, Series};
use crate::terminal::write;

/// Prints the table of `series`, at the end of a run or of several: byte for byte what
/// `profiler report` prints of its file with the same unit and width. `width` is the terminal's, in columns; `None` never
/// wraps.
///
/// # Errors
/// If `out` cannot be written. A closed pipe is not an error.
pub fn print_series(
    series: &Series,
    unit: Unit,
    width: Option<u16>,
    out: &mut dyn Write,
) -> io::Result<()> {
    write(out, &series::tables(series, unit, width))
}

/// Prints the plots of all handlers.
///
/// # Errors
/// If `out` cannot be written. A closed pipe is not an error.
pub fn print_plots(recordings: &[Recording], out: &mut dyn Write) -> io::Result<()> {
    recordings.iter().try_for_each(|recording| write(out, plots(recording).as_bytes()))
}

/// Columns of the terminal; `None` if standard output is not one.
#[must_use]
pub fn stdout_width() -> Option<u16> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0)
}

/// The failure to print a report.
pub(in crate::cmd) fn unwritable(error: &io::Error) -> Failure {
    let message = format!("cannot write the report: {error}: write it elsewhere");
    Failure::new(exit::BAD_OUTPUT, message)
}
