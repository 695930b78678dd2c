//! What the profiler and a supervisor send each other: JSON, a line a message.
//!
//! The end of the supervisor's input, because the profiler wants it or is dead, ends the command that runs, and removes
//! the sandbox.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};

use profiler_recording::loads::{Ended, LoadOutcome};

use super::LoadUser;
use super::folder::LoadFolder;

/// From the profiler, after its first line, which is a [`Sandbox`] to make, answered by [`SupervisorMessage::Ready`]. Each is
/// answered before the next is sent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Empty the folder for files; answered by [`SupervisorMessage::Ready`].
    Refresh,
    /// Run this once; answered by [`SupervisorMessage::Ended`].
    Run(CommandRequest),
}

/// What a sandbox is to be. The supervisor makes it, so that a profiler killed at any moment leaves nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    /// What its commands are.
    pub(crate) kind: CommandKind,
    /// Their user, if not the caller.
    pub(crate) user: Option<LoadUser>,
    /// The folder in which they have their `TMPDIR`, by an unused name. A path need not be text.
    pub(super) folder: Option<OsString>,
}

impl Sandbox {
    /// Mode of the folder for files.
    pub(super) fn mode(&self) -> Mode {
        match self.kind {
            // Users that tests switch to can create files in it, too.
            CommandKind::Test => Mode::from_bits_truncate(0o1777),
            CommandKind::Plain | CommandKind::Builtin => Mode::S_IRWXU,
        }
    }

    /// Whether mounts of a command end with it.
    pub(crate) fn private_mounts(&self) -> bool {
        self.kind != CommandKind::Builtin
    }

    /// Removes what a supervisor that was killed has left.
    ///
    /// # Errors
    /// If something remains, which can only be removed by hand.
    pub(super) fn remove(&self) -> Result<(), String> {
        let Some(path) = self.folder.as_ref().map(Path::new) else { return Ok(()) };
        match LoadFolder::open(path, self.user.clone()).and_then(|folder| folder.remove()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("{} could not be removed: {error}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

/// What a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CommandKind {
    /// One of the user. Its output goes to standard error: the profiler's standard output is its report.
    Plain,
    /// A built-in load, which writes its outcome as a message, and ends its own children when it gets SIGTERM.
    Builtin,
    /// A test of LTP in the folder for files, of whose output the end is kept. What it leaves running is killed at once.
    Test,
}

/// A command to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CommandRequest {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Variables to set, in addition to the supervisor's and `TMPDIR`.
    pub(crate) env: Vec<(String, OsString)>,
    pub(crate) timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

/// A message to the profiler.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SupervisorMessage {
    /// The sandbox is there, and its folder for files is empty.
    Ready,
    /// It is not; or, at the end, it could not be removed.
    Failed(String),
    /// The command and all its descendants have ended.
    Ended(Ended),
    /// The outcome of a built-in load, by its own process.
    Outcome(Box<LoadOutcome>),
}

impl SupervisorMessage {
    /// Writes the message to standard output. Who does not read is dead or about to be: the clean-up goes on.
    pub(crate) fn send(&self) {
        if let Ok(line) = serde_json::to_string(self) {
            let _ = writeln!(io::stdout(), "{line}");
        }
    }
}
