//! Load generators inside the program: each repeats one system call.
//!
//! The table of docs/loads.md has the operation of each kind and the kernel functions that it calls. Set-up happens once
//! a worker. What an operation needs is prepared before the operation is due, and is not part of its latency.
//!
//! `module` and `text-poke` change the kernel, so they run in the lab's guest alone.
//!
//! `open`, `rename`, `link`, `unlink`, `rmdir`, `write`, `mount`, `stat` and `open-existing` work in a private directory.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use profiler_base::stop::StopSignal;
use profiler_recording::loads::{BuiltinKind, Dimensions, LoadOutcome, LoadSpec, Rate};

use super::sandbox::ProfilerProgram;

mod credentials;
mod files;
mod general;
mod kernel;
mod make;
mod net;
mod process;
mod tally;
mod thread;
mod worker;
mod workers;

pub use kernel::MODULE;
pub(super) use process::ptrace_child_main;
pub(super) use tally::monotonic_now;

/// What removes a load's directory, also if the profiler is killed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Remover {
    /// A process of its own.
    #[default]
    Process,
    /// The supervisor of the sandbox, whose folder it is.
    Sandbox,
    /// Nothing: the machine ends with the load.
    Nothing,
}

/// Repeats one operation on threads of its own: by default on one, as fast as possible, until stopped.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BuiltinLoad {
    /// The operation.
    pub kind: BuiltinKind,
    /// Threads, at least one.
    pub workers: u32,
    /// Operations per second over all workers, late ones later and none skipped; `None` is a closed loop.
    pub rate: Option<Rate>,
    /// Operations in total, failed ones included, shared evenly over the workers; `None` goes on until stopped.
    pub operations: Option<u64>,
    /// Pins each worker to a CPU: worker `n` to the `n`-th of those that this process may use, starting over after the
    /// last.
    pub pin: bool,
    /// What operations give handlers to walk over.
    #[serde(default, skip_serializing_if = "Dimensions::is_none")]
    pub dimensions: Dimensions,
    /// Operations that started or were due before this time of the monotonic clock, the warm-up, are left out of
    /// latencies alone.
    pub measured_from: Option<Duration>,
    /// Where loads on files make their private directory; by default the directory for temporary files.
    #[serde(skip)]
    pub directory: Option<PathBuf>,
    /// The file of the module that `module` loads, whose name is [`MODULE`].
    #[serde(skip)]
    pub module: Option<PathBuf>,
    /// The program that `execve` executes and `ptrace` traces.
    #[serde(skip)]
    pub profiler: ProfilerProgram,
    /// What removes that directory.
    #[serde(skip)]
    pub remover: Remover,
}

impl BuiltinLoad {
    /// The load `kind` with the defaults.
    pub fn new(kind: BuiltinKind) -> Self {
        Self {
            kind,
            workers: 1,
            rate: None,
            operations: None,
            pin: false,
            dimensions: Dimensions::default(),
            measured_from: None,
            directory: None,
            module: None,
            profiler: ProfilerProgram::default(),
            remover: Remover::default(),
        }
    }

    /// Whether its operations are timed. Where the emulator counts their instructions, those that read the clock and record a time
    /// would be among them, and how many these are depends on the time.
    pub(super) fn is_timed(&self) -> bool {
        self.remover != Remover::Nothing
    }

    /// What it is.
    pub fn describe(&self) -> LoadSpec {
        LoadSpec::Builtin {
            name: self.kind,
            workers: self.workers,
            rate_per_s: self.rate,
            operations: self.operations,
            pin: self.pin,
            user: None,
            dimensions: self.dimensions,
        }
    }

    /// Runs it on threads of this process until its operations are made, or until `stop`. Its CPU time is the process's.
    pub fn run(&self, stop: &StopSignal) -> LoadOutcome {
        workers::run(self, stop)
    }
}
