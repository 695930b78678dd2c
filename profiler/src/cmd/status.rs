//! `profiler status`: what a running daemon does.

use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use super::{ask, data_to_stdout, json, to_stdout, unexpected};
use crate::cli::StatusArgs;
use crate::error::{Failure, exit};
use crate::progress::Progress;
use crate::run::Signals;
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
        return data_to_stdout(json(&status)?.as_bytes());
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
    let failed = |error: &dyn std::fmt::Display| Failure::new(exit::INTERNAL, error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(&error))?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::new()?;
        progress.begin("profiler serve (Ctrl-C ends this view, not the daemon)", None);
        loop {
            progress.table(|lines| status.text(lines));
            // A daemon that replaces its driver answers late.
            let next = async {
                tokio::time::sleep(EVERY).await;
                tokio::task::spawn_blocking(state).await.map_err(|error| failed(&error))?
            };
            status = tokio::select! {
                _ = signals.next() => return Ok(()),
                next = next => next?,
            };
        }
    });
    // Not waiting for an answer that nobody wants any more.
    runtime.shutdown_background();
    ended
}
