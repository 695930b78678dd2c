//! What client and supervisor send each other.
//!
//! The client writes [`SupervisorOptions`], a JSON line, to the supervisor's standard input, and [`CREATED`] once the folder and
//! the control group in them exist. The end of the input asks for the command's end. The supervisor answers on
//! standard output, a JSON line a [`SupervisorMessage`]. A sandboxed built-in load writes its outcome to
//! the same pipe.

use std::io::{self, Write as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::process_tree::Exit;
use crate::recording::loads::LoadOutcome;

/// The command may start.
pub(super) const CREATED: &str = "created\n";

/// How to run the command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SupervisorOptions {
    /// Time between SIGTERM and SIGKILL.
    pub(super) grace_ms: u64,
    /// User and group that the command runs as.
    pub(super) user: Option<(u32, u32)>,
    /// The command's temporary folder, which the supervisor removes at the end.
    pub(super) temp_folder: Option<PathBuf>,
    /// The command's control group, which the supervisor removes at the end.
    pub(super) cgroup: Option<PathBuf>,
    /// Whether the command writes messages itself. It then ends its own children, so SIGTERM is sent to
    /// it alone.
    pub(super) writes_messages: bool,
}

/// A message to the client. The end of the messages means that all is cleaned up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::load) enum SupervisorMessage {
    /// The command could not be executed: the errno.
    NotStarted(i32),
    /// The command ended.
    Ended(Exit),
    /// These processes did not end after SIGKILL.
    Unkillable(Vec<i32>),
    /// The supervisor itself failed.
    Error(String),
    /// The outcome of a built-in load, by its own process.
    Outcome(Box<LoadOutcome>),
}

impl SupervisorMessage {
    /// Writes the message to standard output.
    pub(in crate::load) fn send(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(self)?)?;
        out.flush()
    }
}
