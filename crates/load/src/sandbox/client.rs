//! The profiler's side of a supervisor.

use std::process::Stdio;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use profiler_base::stop::StopSignal;
use profiler_recording::loads::{Ended, LoadFailure};

use super::folder::unused_name;
use super::protocol::{CommandKind, CommandRequest, Request, Sandbox, SupervisorMessage};
use super::{Role, SandboxOptions};
use crate::syscalls::with_own_limits;

/// A supervisor and its sandbox. When this is dropped, the supervisor ends its command and removes the sandbox.
pub(crate) struct Supervised {
    sandbox: Sandbox,
    process: Child,
    /// Closing it asks for the end.
    input: Option<ChildStdin>,
    output: Option<Lines<BufReader<ChildStdout>>>,
}

impl Supervised {
    /// Starts a supervisor, and has it make the sandbox, with a folder for files if that `needs_folder`.
    pub(crate) async fn start(
        options: &SandboxOptions,
        kind: CommandKind,
        needs_folder: bool,
    ) -> Result<Self, LoadFailure> {
        let could_not = |text| LoadFailure::CouldNotStart { text };
        let user = options.other_user().map_err(could_not)?.cloned();
        let folder = needs_folder.then(|| {
            // Absolute, as a command may change its working folder.
            let parent = options.directory.clone().unwrap_or_else(std::env::temp_dir);
            let parent = std::path::absolute(&parent).unwrap_or(parent);
            parent.join(unused_name("profiler-load-")).into()
        });
        let sandbox = Sandbox { kind, user, folder };
        let profiler = &options.profiler;
        let mut command = profiler.command(Role::Supervisor);
        with_own_limits(&mut command);
        let mut command = Command::from(command);
        // A process group of its own: Ctrl-C at the terminal is for the profiler, which stops the load.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| {
            could_not(format!("its supervisor, {}: {error}", profiler.path().display()))
        })?;
        let input = process.stdin.take();
        let output = process.stdout.take().map(|output| BufReader::new(output).lines());
        let mut this = Self { sandbox: sandbox.clone(), process, input, output };
        let made = this.ask(&sandbox).await;
        if made == Some(Ok(())) {
            return Ok(this);
        }
        let left = this.close().await.err();
        Err(match made.and_then(Result::err) {
            Some(text) => could_not(joined(text, left)),
            None => LoadFailure::BrokeOff { text: GONE.to_owned() },
        })
    }

    async fn send(&mut self, request: &impl Serialize) {
        if let (Some(input), Ok(line)) = (&mut self.input, serde_json::to_string(request)) {
            // If the supervisor is dead, the missing answer shows it.
            let _ = input.write_all(format!("{line}\n").as_bytes()).await;
        }
    }

    /// The next message; `None` when there are no more.
    async fn receive(&mut self) -> Option<SupervisorMessage> {
        while let Some(line) = self.output.as_mut()?.next_line().await.ok()? {
            // A load may write anything to the pipe that it shares with the supervisor.
            if let Ok(message) = serde_json::from_str(&line) {
                return Some(message);
            }
        }
        None
    }

    /// Asks for what needs no report. `None` if the supervisor is gone.
    async fn ask(&mut self, request: &impl Serialize) -> Option<Result<(), String>> {
        self.send(request).await;
        match self.receive().await? {
            SupervisorMessage::Ready => Some(Ok(())),
            SupervisorMessage::Failed(text) => Some(Err(text)),
            _ => None,
        }
    }

    /// Empties the folder for files.
    pub(crate) async fn refresh(&mut self) -> Result<(), String> {
        self.ask(&Request::Refresh).await.unwrap_or_else(|| Err(GONE.to_owned()))
    }

    /// Runs a command until it ends or `stop`, which also ends the supervisor. When this returns, all its descendants are gone.
    ///
    /// # Errors
    /// If the supervisor does not report the command's end.
    pub(crate) async fn run(
        &mut self,
        command: &CommandRequest,
        stop: &StopSignal,
    ) -> Result<Ended, String> {
        self.send(&Request::Run(command.clone())).await;
        let mut outcome = None;
        loop {
            let stoppable = self.input.is_some();
            tokio::select! {
                message = self.receive() => match message {
                    Some(SupervisorMessage::Ended(ended)) => return Ok(Ended { outcome, ..ended }),
                    Some(SupervisorMessage::Outcome(reported)) => outcome = Some(reported),
                    Some(SupervisorMessage::Failed(text)) => return Err(text),
                    Some(SupervisorMessage::Ready) => {}
                    None => return Err(GONE.to_owned()),
                },
                _ = stop.stopped(), if stoppable => self.input = None,
            }
        }
    }

    /// Has the supervisor remove the sandbox, and waits for that.
    ///
    /// # Errors
    /// If something had to be left.
    pub(crate) async fn close(mut self) -> Result<(), String> {
        self.input = None;
        let mut closed = Ok(());
        while let Some(message) = self.receive().await {
            if let SupervisorMessage::Failed(text) = message {
                closed = Err(text);
            }
        }
        let ended = self.process.wait().await;
        // It ends with one of these if it has removed the sandbox itself, or has said why not.
        if ended.is_ok_and(|status| matches!(status.code(), Some(0 | 1))) {
            return closed;
        }
        let removed = tokio::task::spawn_blocking(move || self.sandbox.remove()).await;
        closed.and(removed.unwrap_or_else(|error| Err(format!("its clean-up: {error}"))))
    }
}

const GONE: &str = "its supervisor ended without a report; was it killed?";

/// Runs one command in a sandbox of its own. Leftovers of the sandbox do not make the command fail.
pub(crate) async fn run_once(
    options: &SandboxOptions,
    kind: CommandKind,
    needs_folder: bool,
    command: &CommandRequest,
    stop: &StopSignal,
) -> Result<Ended, LoadFailure> {
    let mut supervised = Supervised::start(options, kind, needs_folder).await?;
    let ended = supervised.run(command, stop).await;
    let left = supervised.close().await.err();
    match ended {
        Ok(ended) => Ok(Ended { left, ..ended }),
        Err(text) => Err(LoadFailure::BrokeOff { text: joined(text, left) }),
    }
}

/// What failed, and what the clean-up had to leave.
fn joined(text: String, left: Option<String>) -> String {
    let all: Vec<String> = std::iter::once(text).chain(left).collect();
    all.join("; ")
}
