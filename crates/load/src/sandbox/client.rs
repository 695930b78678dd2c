//! The profiler's side of a supervisor.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::folder::{FolderPlan, unused_name};
use super::protocol::{CommandRequest, Request, Sandbox, SupervisorMessage};
use super::{Role, SandboxOptions};
use crate::syscalls::with_own_limits;
use profiler_base::stop::StopSignal;
use profiler_recording::loads::{Ended, LoadFailure, LoadOutcome};

/// A supervisor and its sandbox. When this is dropped, the supervisor ends its command and removes the sandbox.
pub(crate) struct Supervised {
    sandbox: Sandbox,
    process: Child,
    /// Closing it asks for the end.
    input: Option<ChildStdin>,
    output: Option<Lines<BufReader<ChildStdout>>>,
}

impl Supervised {
    /// Starts a supervisor, and has it make the sandbox, with a folder for files of this mode.
    pub(crate) async fn start(
        options: &SandboxOptions,
        files: Option<u32>,
        private_mounts: bool,
    ) -> Result<Self, LoadFailure> {
        let user = options.other_user().map_err(|text| LoadFailure::CouldNotStart { text })?;
        let user = user.cloned();
        let folder = files.map(|mode| {
            // Absolute, as a command may change its working folder.
            let parent = options.directory.clone().unwrap_or_else(std::env::temp_dir);
            let parent = std::path::absolute(&parent).unwrap_or(parent);
            let path = parent.join(unused_name("profiler-load-")).into();
            FolderPlan { path, mode, user: user.clone() }
        });
        let sandbox = Sandbox { user, folder, private_mounts };
        let profiler = &options.profiler;
        let mut command = profiler.command(Role::Supervisor);
        with_own_limits(&mut command);
        let mut command = Command::from(command);
        // A process group of its own: Ctrl-C at the terminal is for the profiler, which stops the load.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| LoadFailure::CouldNotStart {
            text: format!("its supervisor, {}: {error}", profiler.path().display()),
        })?;
        let input = process.stdin.take();
        let output = process.stdout.take().map(|output| BufReader::new(output).lines());
        let mut this = Self { sandbox: sandbox.clone(), process, input, output };
        let Err(mut failure) = this.ask(Request::Create(sandbox)).await else { return Ok(this) };
        let closed = this.close().await;
        if let (LoadFailure::CouldNotStart { text }, Err(left)) = (&mut failure, closed) {
            // Its own reason comes first.
            text.push_str(&format!("; {left}"));
        }
        Err(failure)
    }

    async fn send(&mut self, request: Request) {
        if let (Some(input), Ok(line)) = (&mut self.input, serde_json::to_string(&request)) {
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

    async fn ask(&mut self, request: Request) -> Result<(), LoadFailure> {
        self.send(request).await;
        match self.receive().await {
            Some(SupervisorMessage::Ready) => Ok(()),
            Some(SupervisorMessage::Failed(text)) => Err(LoadFailure::CouldNotStart { text }),
            _ => Err(LoadFailure::BrokeOff { text: GONE.to_owned() }),
        }
    }

    /// Empties the folder for files.
    pub(crate) async fn refresh(&mut self) -> Result<(), String> {
        self.ask(Request::Refresh).await.map_err(|failure| match failure {
            LoadFailure::CouldNotStart { text } | LoadFailure::BrokeOff { text } => text,
            other => other.to_string(),
        })
    }

    /// Runs a command until it ends or `stop`, which also ends the supervisor. When this returns, all its descendants are gone.
    ///
    /// # Errors
    /// If the supervisor does not report the command's end.
    pub(crate) async fn run(
        &mut self,
        command: &CommandRequest,
        stop: &StopSignal,
    ) -> Result<(Ended, Option<Box<LoadOutcome>>), String> {
        self.send(Request::Run(command.clone())).await;
        let mut outcome = None;
        loop {
            let stoppable = self.input.is_some();
            tokio::select! {
                message = self.receive() => match message {
                    Some(SupervisorMessage::Ended(ended)) => return Ok((ended, outcome)),
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
    files: Option<u32>,
    private_mounts: bool,
    command: &CommandRequest,
    stop: &StopSignal,
) -> Result<(Ended, Option<Box<LoadOutcome>>), LoadFailure> {
    let mut supervised = Supervised::start(options, files, private_mounts).await?;
    let ended = supervised.run(command, stop).await;
    let left = supervised.close().await.err();
    match ended {
        Ok((ended, outcome)) => Ok((Ended { left, ..ended }, outcome)),
        Err(text) => {
            let all: Vec<String> = std::iter::once(text).chain(left).collect();
            Err(LoadFailure::BrokeOff { text: all.join("; ") })
        }
    }
}
