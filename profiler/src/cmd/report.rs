//! `profiler report`: the table of a run, from its file.

use std::io::{self, Write};
use std::path::Path;

use crate::export::table::clean;
use crate::export::{Exporter as _, Table, Unit};
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
/// run itself printed, if unit and width are the same; a series has one table a run. `width` is the terminal's, in columns;
/// `None` never wraps.
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
    if let [profile] = series.runs.as_slice() {
        return print(profile, unit, width, out).map_err(ReportError::Write);
    }
    let all = series.runs.len();
    for (number, profile) in series.runs.iter().enumerate() {
        let mut head = format!("run {} of {all}", number + 1);
        if let Some(place) = &profile.place {
            head.push_str(&format!(", boot {}, order {}", place.boot, place.order));
            if let Some(part) = &place.part {
                head.push_str(&format!(", {}", clean(part)));
            }
        }
        let gap = if number == 0 { "" } else { "\n" };
        match writeln!(out, "{gap}{head}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            result => result.map_err(ReportError::Write)?,
        }
        print(profile, unit, width, out).map_err(ReportError::Write)?;
    }
    Ok(())
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
    let table = Table { unit, width }.serialize(profile);
    match out.write_all(&table).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Columns of the terminal that standard output is; `None` if it is none.
#[must_use]
pub fn stdout_width() -> Option<u16> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0)
}
