//! What the profiler and the process that runs a test say to each other: JSON, a line a message, over a
//! socket between the two.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::result::TestEnd;

/// From the profiler: run this, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    /// Program and arguments.
    pub(super) argv: Vec<String>,
    /// Variables to set, on top of those of the process that runs it.
    pub(super) env: Vec<(String, String)>,
    /// User and group to run as; `None` is who runs it.
    pub(super) user: Option<(u32, u32)>,
    /// Working folder; `None` is that of the process that runs it.
    pub(super) cwd: Option<PathBuf>,
    /// Time after which it is ended.
    pub(super) limit_ms: u64,
    /// Time between SIGTERM and SIGKILL.
    pub(super) grace_ms: u64,
    /// Whether its output, whose end is kept, also goes where that of the process goes that runs it.
    pub(super) pass_output_on: bool,
}

/// To the profiler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// A runner of LTP's has started this process for the test of that number.
    Hello(usize),
    /// The test has ended, and everything that it started has.
    Ended {
        end: TestEnd,
        /// Time from its start to its end, without the clearing away.
        elapsed_ns: u64,
        /// Processes that had to be killed after its end.
        left_running: u64,
        /// Processes that even SIGKILL did not end.
        immortal: Vec<i32>,
        /// The last that it wrote.
        output: String,
    },
    /// The process that runs tests cannot go on.
    Fault(String),
}
