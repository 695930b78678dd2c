//! A module for each subcommand, or for a few of a kind.

use std::io::{self, Write as _};
use std::path::Path;

use crate::error::{Failure, exit};
use crate::export::grid::words as grid;
use crate::probe::keeper;
use crate::serve::control::{self, Answer, Request};

mod exports;
mod failures;
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
pub mod release;
pub mod report;
pub mod restore;
pub mod run;
pub mod serve;
pub mod shell;
pub mod status;
pub mod sweep;

/// Writes to standard output; a closed pipe is not an error.
fn to_stdout(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(exit::BAD_OUTPUT, format!("cannot write the output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Restores what a killed profiler had changed in tracefs, and reports it.
fn restore_tracefs() {
    match keeper::put_back(Path::new("/")) {
        Ok(done) if done.is_all() && done.journal.is_none() => {}
        Ok(done) => eprintln!("{done}"),
        Err(error) => eprintln!("warning: tracefs was not restored after an earlier run: {error}"),
    }
}

/// Asks the daemon.
fn ask(request: &Request) -> Result<Answer, Failure> {
    control::ask(Path::new(control::FOLDER), request).map_err(Failure::from)
}

/// The daemon answers what was not asked.
fn unexpected(answer: &Answer) -> Failure {
    Failure::new(exit::INTERNAL, format!("the daemon gave another answer: {answer:?}"))
}

/// Indented JSON with a newline at its end.
fn json<T: serde::Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))
}
