//! Printing of tables and plots.

use std::io::{self, Write};
use std::path::Path;

use crate::export::plot::plots;
use crate::export::{Unit, series};
use crate::recording::{ReadError, Recording, Series};

/// Why a report failed.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file is not a valid recording.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The table could not be written.
    #[error("cannot write the report: {0}: write it elsewhere")]
    Write(#[source] io::Error),
}

/// Prints the recording in `path` (`-` is standard input) to `out`: byte for byte the table that the
/// run printed, if unit and width are the same; a series has one table of all its runs. `width` is
/// the terminal's, in columns; `None` never wraps.
///
/// # Errors
/// If the file is not a valid recording, or `out` cannot be written. A closed pipe is not an error.
pub fn report(
    path: &Path,
    unit: Unit,
    width: Option<u16>,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    let series = Series::read(path)?;
    write(out, &series::tables(&series, unit, width)).map_err(ReportError::Write)
}

/// Prints the table of `series`, at the end of a run or of several and for [`report`].
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

/// Writes `bytes`; a closed pipe is not an error.
pub(super) fn write(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Columns of the terminal; `None` if standard output is not one.
#[must_use]
pub fn stdout_width() -> Option<u16> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0)
}
