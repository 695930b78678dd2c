//! Load generators inside the program: each repeats one system call and counts every one.
//!
//! The table of docs/loads.md has the operation of each kind and the kernel functions that it calls. Set-up happens once
//! a worker; [`OwnCalls`](super::OwnCalls) includes its calls, so it equals what a probe counts. What an operation needs is
//! prepared before the operation is due, and is not part of its latency.
//!
//! There is none for `do_init_module`: it needs a valid module, built for the running kernel. A command
//! of the user can load and remove one.
//!
//! `open`, `rename`, `link`, `unlink`, `rmdir`, `write`, `mount`, `stat` and `open-existing` work in a private directory. The
//! process that removes it if the profiler is killed adds one `execve` a load.

use std::path::PathBuf;
use std::time::Instant;

use tokio::sync::oneshot;

use super::run::{Load, Running};
use super::sandbox::ProfilerProgram;
use crate::recording::loads::{BuiltinKind, LoadFailure, LoadOutcome, LoadSpec, LoadStatus, Rate};
use crate::stop::{StopReason, StopSignal};

mod credentials;
mod files;
mod general;
mod latency;
mod make;
mod net;
mod process;
mod thread;
mod timing;
mod worker;
mod workers;

pub(super) use process::ptrace_child_main;
pub use timing::{cpu_time_of_builtin, time_builtin};

/// Repeats one operation on threads of its own: by default on one, as fast as possible, until stopped.
#[derive(Debug, Clone)]
pub struct BuiltinLoad {
    pub(super) kind: BuiltinKind,
    pub(super) workers: u32,
    pub(super) rate: Option<Rate>,
    pub(super) operations: Option<u64>,
    pub(super) pin: bool,
    pub(super) measured_from: Option<Instant>,
    pub(super) directory: Option<PathBuf>,
    pub(super) profiler: ProfilerProgram,
    pub(super) unattended: bool,
}

impl BuiltinLoad {
    /// The load `kind` with the defaults.
    #[must_use]
    pub fn new(kind: BuiltinKind) -> Self {
        Self {
            kind,
            workers: 1,
            rate: None,
            operations: None,
            pin: false,
            measured_from: None,
            directory: None,
            profiler: ProfilerProgram::this(),
            unattended: false,
        }
    }

    /// Sets the number of threads; 0 is taken as 1.
    #[must_use]
    pub fn workers(mut self, workers: u32) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Sets the operations per second over all workers. Late operations are made later, never skipped.
    /// `None` is a closed loop.
    #[must_use]
    pub fn rate(mut self, rate: Option<Rate>) -> Self {
        self.rate = rate;
        self
    }

    /// Sets the operations in total, failed ones included, shared evenly over the workers; `None` goes
    /// on until stopped.
    #[must_use]
    pub fn operations(mut self, operations: Option<u64>) -> Self {
        self.operations = operations;
        self
    }

    /// Pins each worker to a CPU: worker `n` to the `n`-th of those that this process may use, starting
    /// over after the last.
    #[must_use]
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Excludes operations that started or were due before this time, the warm-up, from the latencies
    /// (and from nothing else).
    #[must_use]
    pub fn measured_from(mut self, from: Option<Instant>) -> Self {
        self.measured_from = from;
        self
    }

    /// Sets where loads on files make their private directory; by default the directory for temporary files.
    #[must_use]
    pub fn directory(mut self, directory: Option<PathBuf>) -> Self {
        self.directory = directory;
        self
    }

    /// Sets the program that `execve` executes and `ptrace` traces.
    #[must_use]
    pub fn profiler(mut self, profiler: ProfilerProgram) -> Self {
        self.profiler = profiler;
        self
    }

    /// Leaves its directory to a machine that ends with it: no process waits to remove it.
    #[must_use]
    pub(crate) fn unattended(mut self) -> Self {
        self.unattended = true;
        self
    }

    /// Runs it in this thread, in a process that does nothing else: the CPU time of the process is the
    /// load's.
    pub(crate) fn run_alone(&self, stop: &StopSignal) -> LoadOutcome {
        workers::run(self, stop, true)
    }
}

impl Load for BuiltinLoad {
    fn describe(&self) -> LoadSpec {
        LoadSpec::Builtin {
            name: self.kind,
            workers: self.workers,
            rate_per_s: self.rate,
            operations: self.operations,
            pin: self.pin,
            user: None,
        }
    }

    fn run(self: Box<Self>, stop: StopSignal) -> Running {
        Box::pin(async move {
            let started = Instant::now();
            let broke_off = |text| {
                let failure = LoadFailure::BrokeOff { text };
                LoadOutcome::ended(LoadStatus::Failed(failure), started)
            };
            let (done, outcome) = oneshot::channel();
            let of_thread = stop.clone();
            // Its own threads: blocking calls must not delay the runtime that drains the histograms.
            let thread = std::thread::Builder::new().name(format!("load-{}", self.kind));
            let thread = thread.spawn(move || {
                // Sending fails only if the future was dropped, which has stopped the load.
                let _ = done.send(workers::run(&self, &of_thread, false));
            });
            let thread = match thread {
                Ok(thread) => thread,
                Err(error) => return broke_off(format!("no thread for the load: {error}")),
            };
            let mut on_drop = StopOnDrop { stop: &stop, armed: true };
            let outcome = outcome.await;
            on_drop.armed = false;
            drop(on_drop);
            // The outcome is the last thing the thread does, so this does not block.
            let _ = thread.join();
            outcome.unwrap_or_else(|_| {
                broke_off("its thread panicked; this is a bug of the profiler".to_owned())
            })
        })
    }
}

/// Stops the load whose future is dropped before its end.
struct StopOnDrop<'a> {
    stop: &'a StopSignal,
    armed: bool,
}

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.stop.stop(StopReason::Interrupted);
        }
    }
}
