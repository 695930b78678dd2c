//! `profiler status`: what a running daemon does.

use super::{ask, data_to_stdout, to_stdout, unexpected};
use crate::cli::StatusArgs;
use crate::error::Failure;
use crate::export::json::indented;
use crate::serve::control::{Answer, Request};

/// See the [command line](StatusArgs).
///
/// # Errors
/// If no daemon runs.
pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    match ask(&Request::Status)? {
        Answer::Status(status) if args.json => data_to_stdout(&indented(&status)),
        Answer::Status(status) => to_stdout(&(status.text() + "\n")),
        answer => Err(unexpected(&answer)),
    }
}
