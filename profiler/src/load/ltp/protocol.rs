//! What the profiler and the agent that runs tests send each other: JSON, a line a message, over a
//! socket.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::recording::loads::TestEnd;

/// From the profiler: run this once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TestRequest {
    /// Program and arguments.
    pub(super) argv: Vec<String>,
    /// Variables to set, in addition to the agent's.
    pub(super) env: Vec<(String, String)>,
    /// User and group to run as; `None` are the agent's.
    pub(super) user: Option<(u32, u32)>,
    /// Working folder.
    pub(super) cwd: PathBuf,
    pub(super) timeout_ms: u64,
    /// Time between SIGTERM and SIGKILL.
    pub(super) grace_ms: u64,
}

/// To the profiler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AgentMessage {
    /// The test and all its descendants have ended.
    Ended {
        end: TestEnd,
        /// Time from its start to its end, without the clean-up.
        elapsed_ns: u64,
        /// Processes that had to be killed after its end.
        left_running: u64,
        /// Processes that did not end after SIGKILL.
        unkillable: Vec<i32>,
        /// The end of its output.
        output: String,
    },
}
