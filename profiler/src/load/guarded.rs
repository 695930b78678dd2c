//! The profiler's side of a guard: starts it, tells it to end, hears what it has to say.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::confine::{Confinement, Enclosure};
use super::guard::{Message, Orders};
use super::helper::Role;
use super::{HelperProgram, LoadFailure, LoadOutcome, StopReason, StopSignal, sys};

/// A program that runs below a guard.
#[derive(Debug, Clone)]
pub(super) struct Guarded {
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    pub(super) grace: Duration,
    pub(super) helper: HelperProgram,
    pub(super) confinement: Confinement,
    /// Whether it gets a folder for its files.
    pub(super) with_scratch: bool,
    /// Whether it reports an outcome itself; SIGTERM goes to it alone, its children are its own affair.
    pub(super) reports: bool,
}

/// What came from the guard.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The message that says how it ended.
    pub(super) end: Option<Message>,
    pub(super) ended_after: Option<Duration>,
    pub(super) left: Option<Vec<i32>>,
    /// What the program itself reported.
    pub(super) outcome: Option<Box<LoadOutcome>>,
    /// Why it was told to end, if it was before it ended by itself.
    pub(super) stopped_by: Option<StopReason>,
}

impl Told {
    fn hear(&mut self, line: &str, started: Instant) {
        match Message::parse(line) {
            None | Some(Message::Started(_)) => {}
            Some(Message::Left(pids)) => self.left = Some(pids),
            Some(Message::Outcome(outcome)) => self.outcome = Some(outcome),
            Some(message) => {
                self.end = Some(message);
                self.ended_after = Some(started.elapsed());
            }
        }
    }
}

impl Guarded {
    fn start(&self, enclosure: &Enclosure) -> std::io::Result<Child> {
        let user = self.confinement.user.as_ref().filter(|user| !user.is_me());
        let orders = Orders {
            grace_ms: u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX),
            user: user.map(|user| (user.uid, user.gid)),
            scratch: enclosure.scratch.as_ref().map(|folder| folder.path().to_owned()),
            group: enclosure.group.clone(),
            reports: self.reports,
        };
        let mut command = self.helper.command(Role::CommandGuard);
        command.arg(serde_json::to_string(&orders)?).arg(&self.program).args(&self.args);
        sys::with_own_limits(&mut command);
        let mut command = Command::from(command);
        // Its own group: the terminal's Ctrl-C is for the profiler, which then stops the load in order.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    }

    /// Runs it to its end, or until `stop`. When this returns all that it started is gone.
    ///
    /// # Errors
    /// If it could not be started.
    pub(super) async fn run(&self, stop: &StopSignal) -> Result<Told, LoadFailure> {
        let started = Instant::now();
        let could_not_start = |text| LoadFailure::CouldNotStart { text };
        let enclosure =
            Enclosure::new(&self.confinement, self.with_scratch).map_err(could_not_start)?;
        let mut guard = self.start(&enclosure).map_err(|error| {
            could_not_start(format!("its guard, {}: {error}", self.helper.path().display()))
        })?;
        // Closing it asks the guard to end the command; that also happens when this future is dropped.
        let mut order = guard.stdin.take();
        let mut told = Told::default();
        if let Some(answers) = guard.stdout.take() {
            let mut answers = BufReader::new(answers).lines();
            loop {
                tokio::select! {
                    line = answers.next_line() => match line {
                        Ok(Some(line)) => told.hear(&line, started),
                        Ok(None) | Err(_) => break,
                    },
                    reason = stop.stopped(), if order.is_some() => {
                        // A command that had ended by itself was not stopped, whatever it left running.
                        if told.end.is_none() {
                            told.stopped_by = Some(reason);
                        }
                        order = None;
                    }
                }
            }
        }
        // Nothing to learn from its code: what it had to say came by the pipe.
        let _ = guard.wait().await;
        Ok(told)
    }
}
