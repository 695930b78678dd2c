//! Printing of tables and plots.

use std::io::{self, Write};
use std::path::Path;

use crate::export::plot::plots;
use crate::export::{Exporter as _, Table, Unit, series};
use crate::profile::{Profile, ReadError, Series};

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
    write(out, &series::tables(&series, unit, width)).map_err(ReportError::Write)
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
    write(out, &series::tables(series, unit, width))
}

/// Prints the plots of all handlers, as they stand below the table.
///
/// # Errors
/// If `out` cannot be written, but for a closed pipe.
pub fn print_plots(profiles: &[Profile], out: &mut dyn Write) -> io::Result<()> {
    profiles.iter().try_for_each(|profile| write(out, plots(profile).as_bytes()))
}

/// Writes all; a reader that has seen enough and closes the pipe is no error.
pub(super) fn write(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
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
