//! `profiler status`: what a running daemon does.

use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use super::{ask, json, to_stdout, unexpected};
use crate::cli::StatusArgs;
use crate::error::{Failure, exit};
use crate::progress::Progress;
use crate::run::{self, Signals};
use crate::serve::control::{Answer, Request};
use crate::serve::status::Status;

/// How often a terminal is drawn anew.
const EVERY: Duration = Duration::from_secs(1);

/// See the [command line](StatusArgs).
///
/// # Errors
/// If no daemon runs.
pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    let status = state()?;
    if args.json {
        return to_stdout(&json(&status)?);
    }
    let mut progress = Progress::new(false);
    if !stdout().is_terminal() || !progress.is_drawn() {
        return to_stdout(&(status.text(usize::MAX) + "\n"));
    }
    live(status, &mut progress)
}

fn state() -> Result<Status, Failure> {
    match ask(&Request::Status)? {
        Answer::Status(status) => Ok(status),
        answer => Err(unexpected(&answer)),
    }
}

/// Draws what the daemon does each second, until Ctrl-C.
fn live(mut status: Status, progress: &mut Progress) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(exit::INTERNAL, error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(failed)?.block_on(async {
        let mut signals = Signals::new().map_err(run::Error::from)?;
        progress.begin("profiler serve (Ctrl-C ends this view, not the daemon)", None);
        loop {
            progress.table(|lines| status.text(lines));
            tokio::select! {
                _ = signals.next() => return Ok(()),
                () = tokio::time::sleep(EVERY) => {}
            }
            status = state()?;
        }
    })
}
