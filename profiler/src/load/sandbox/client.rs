//! The profiler's side of a supervisor: starts it, stops it, collects its report.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use super::protocol::{CREATED, SupervisorMessage, SupervisorOptions};
use super::{ProfilerProgram, Role, Sandbox, SandboxOptions, SandboxPlan};
use crate::load::syscalls::with_own_limits;
use crate::recording::loads::{LoadFailure, LoadOutcome};
use crate::stop::{StopReason, StopSignal};

/// A command to run under a supervisor.
#[derive(Debug, Clone)]
pub(in crate::load) struct SupervisedCommand {
    pub(in crate::load) program: OsString,
    pub(in crate::load) args: Vec<OsString>,
    /// Time between SIGTERM and SIGKILL.
    pub(in crate::load) grace: Duration,
    pub(in crate::load) profiler: ProfilerProgram,
    pub(in crate::load) sandbox: SandboxOptions,
    /// Whether it gets a temporary folder.
    pub(in crate::load) with_temp_folder: bool,
    /// Whether it reports an outcome itself; see [`SupervisorOptions::writes_messages`].
    pub(in crate::load) writes_messages: bool,
}

/// What the supervisor reported.
#[derive(Debug, Default)]
pub(in crate::load) struct SupervisorReport {
    /// How the command ended, or why it was not started or supervised.
    pub(in crate::load) end: Option<SupervisorMessage>,
    pub(in crate::load) ended_after: Option<Duration>,
    /// Processes that did not end after SIGKILL.
    pub(in crate::load) unkillable: Vec<i32>,
    /// What the command itself reported.
    pub(in crate::load) outcome: Option<Box<LoadOutcome>>,
    /// Why the command was stopped, if that was before it ended by itself.
    pub(in crate::load) stopped_by: Option<StopReason>,
}

impl SupervisorReport {
    fn add(&mut self, line: &str, started: Instant) {
        match serde_json::from_str(line) {
            Ok(SupervisorMessage::Unkillable(pids)) => self.unkillable = pids,
            Ok(SupervisorMessage::Outcome(outcome)) => self.outcome = Some(outcome),
            Ok(message) => {
                self.end = Some(message);
                self.ended_after = Some(started.elapsed());
            }
            // A load may write whatever it likes to the pipe that it shares with the supervisor.
            Err(_) => {}
        }
    }
}

impl SupervisedCommand {
    /// Starts the supervisor, and what is to be written to it first.
    fn start(&self, plan: &SandboxPlan) -> Result<(Child, String), String> {
        let options = SupervisorOptions {
            grace_ms: u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX),
            user: self.sandbox.other_user()?.map(|user| (user.uid, user.gid)),
            temp_folder: plan.temp_folder.clone(),
            cgroup: plan.cgroup.clone(),
            writes_messages: self.writes_messages,
        };
        let failed = |error| format!("its supervisor, {}: {error}", self.profiler.path().display());
        let options = serde_json::to_string(&options).map_err(|error| failed(error.into()))?;
        let mut command = self.profiler.command(Role::Supervisor);
        command.arg(&self.program).args(&self.args);
        with_own_limits(&mut command);
        let mut command = Command::from(command);
        // A process group of its own: Ctrl-C at the terminal is for the profiler, which stops the load.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok((command.spawn().map_err(failed)?, options + "\n"))
    }

    /// Runs the command until it ends or `stop`. When this returns, all its descendants are gone.
    ///
    /// # Errors
    /// If it could not be started.
    pub(in crate::load) async fn run(
        &self,
        stop: &StopSignal,
    ) -> Result<SupervisorReport, LoadFailure> {
        let started = Instant::now();
        let could_not_start = |text| LoadFailure::CouldNotStart { text };
        let plan =
            SandboxPlan::new(&self.sandbox, self.with_temp_folder).map_err(could_not_start)?;
        // Dropped after the input.
        let mut sandbox = Sandbox::default();
        let (mut supervisor, options) = self.start(&plan).map_err(could_not_start)?;
        // Closing it asks for the end of the command, also when this future is dropped.
        let mut input = supervisor.stdin.take();
        write(&mut input, &options).await;
        if let Err(text) = sandbox.create(plan) {
            drop(input);
            let _ = supervisor.wait().await;
            return Err(could_not_start(text));
        }
        write(&mut input, CREATED).await;
        let mut report = SupervisorReport::default();
        if let Some(output) = supervisor.stdout.take() {
            let mut lines = BufReader::new(output).lines();
            loop {
                tokio::select! {
                    line = lines.next_line() => match line {
                        Ok(Some(line)) => report.add(&line, started),
                        Ok(None) | Err(_) => break,
                    },
                    reason = stop.stopped(), if input.is_some() => {
                        // A command that had ended by itself was not stopped, whatever it left running.
                        if report.end.is_none() {
                            report.stopped_by = Some(reason);
                        }
                        input = None;
                    }
                }
            }
        }
        // Its exit code says no more than its messages.
        let _ = supervisor.wait().await;
        Ok(report)
    }
}

async fn write(input: &mut Option<ChildStdin>, text: &str) {
    if let Some(input) = input {
        // A supervisor that is dead reports nothing, which is seen at its end.
        let _ = input.write_all(text.as_bytes()).await;
    }
}
