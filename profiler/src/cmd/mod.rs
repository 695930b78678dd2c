//! A module for each subcommand, or for a few of a kind.

use std::io;
use std::path::Path;

use serde::Serialize;

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, exit};
use profiler_base::terminal::{clean_lines, say, write};
use profiler_probe::keeper;
use profiler_recording::json::indented;

mod sides;

pub mod bisect;
pub mod compare;
pub mod cost;
pub mod doctor;
pub mod explain;
pub mod gate;
pub mod import;
pub mod kernels;
pub mod lab;
pub mod list;
pub mod merge;
pub mod prepare;
pub mod profiles;
pub mod report;
pub mod restore;
pub mod run;
pub mod serve;
pub mod shell;
pub mod slope;
pub mod tax;

/// Writes text to standard output; a closed pipe is not an error.
fn to_stdout(text: &str) -> Result<(), Failure> {
    data_to_stdout(clean_lines(text).as_bytes())
}

/// As [`to_stdout`], for what programs read: every byte as it is.
fn data_to_stdout(bytes: &[u8]) -> Result<(), Failure> {
    write(&mut io::stdout().lock(), bytes).map_err(|error| {
        Failure::new(exit::BAD_OUTPUT, format!("cannot write the output: {error}"))
    })
}

/// Prints `value` as JSON if that is wanted, else this text, which is fitted to a terminal of so many columns.
fn show(
    json: bool,
    value: &impl Serialize,
    text: impl FnOnce(Option<u16>) -> String,
) -> Result<(), Failure> {
    match json {
        true => data_to_stdout(&indented(value)),
        false => to_stdout(&text(stdout_width())),
    }
}

/// Writes `value` as JSON to the file that is wanted, if any.
fn save(file: Option<OutputFile>, value: &impl Serialize) -> Result<(), Failure> {
    file.map_or(Ok(()), |file| file.commit(&indented(value)))
}

/// Columns of the terminal; `None` if standard output is not one.
pub fn stdout_width() -> Option<u16> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0)
}

/// Restores what a killed profiler had changed in tracefs, and reports it.
fn restore_tracefs() {
    if let Err(left) = put_back() {
        say(&format!("warning: {left}"));
    }
}

/// The same; what could not be restored is an error.
fn put_back() -> Result<(), String> {
    let done = keeper::put_back(Path::new("/"))?;
    if !done.is_empty() {
        say(&done);
    }
    Ok(())
}
