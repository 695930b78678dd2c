//! `profiler status`: what a running daemon does.

use super::{ask, data_to_stdout, to_stdout};
use crate::cli::StatusArgs;
use crate::error::Failure;
use crate::export::json::indented;
use crate::serve::control::Request;
use crate::serve::status::Status;

/// See the [command line](StatusArgs).
///
/// # Errors
/// If no daemon runs.
pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    let status: Status = ask(&Request::Status)?;
    match args.json {
        true => data_to_stdout(&indented(&status)),
        false => to_stdout(&(status.text() + "\n")),
    }
}
