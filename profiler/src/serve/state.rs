//! What the daemon knows at one moment. All that it shows (metrics, recordings, status) is made of this alone.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::recording::Recording;

/// What the daemon knows at one moment.
#[derive(Debug, Clone)]
pub struct State {
    /// When the daemon began.
    pub since: Timestamp,
    /// When this was collected.
    pub at: Timestamp,
    /// The modules that it is for, in the order of its configuration.
    pub modules: Vec<Module>,
    /// Each build that it has measured, in the order in which it attached to them last. One that comes again goes on counting.
    pub builds: Vec<Build>,
    /// What the daemon itself takes.
    pub own: Own,
}

/// A module that the daemon is for.
#[derive(Debug, Clone)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// What the daemon does about it.
    pub phase: Phase,
}

/// What the daemon does about a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It is not loaded.
    Waiting,
    /// Its handlers are measured.
    Measuring,
    /// The probes are off, so that it can be unloaded; they come back with the next load of it.
    Released,
    /// Nothing can be measured, and why; it is tried again.
    Refused(String),
    /// All its handlers are shed for the budget, and no probe is left; they are tried again.
    Shed,
}

/// One build of a module, and all that was measured of it since the daemon began.
#[derive(Debug, Clone)]
pub struct Build {
    /// Its module.
    pub module: String,
    /// Its build id in hexadecimal, or its `srcversion`, or empty if it has neither.
    pub id: String,
    /// When it was last measured: the time of its latest drain.
    pub last: Timestamp,
    /// The recording so far: the sum of its intervals. Its histograms, counts and losses never become less.
    pub recording: Recording,
    /// Handlers by name, that are not measured now although the build is, and why: shed for the budget, gone in this build.
    pub not_measured: BTreeMap<String, NotMeasured>,
    /// Time in which each handler had probes since the daemon began, by its name, in nanoseconds.
    pub covered_ns: BTreeMap<String, u64>,
    /// Whether its handlers are held to the budget; `None` without one, and for a build that is not measured now.
    pub budget_enforced: Option<bool>,
    /// Calls of each handler that are under way, by its name.
    pub in_flight: BTreeMap<String, u64>,
}

/// Why a handler is not measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotMeasured {
    /// Its probes cost more than the budget allows.
    Shed,
    /// This build does not have it, or it cannot be measured: why.
    Missing(String),
}

/// What the daemon itself takes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Own {
    /// CPU time of all its threads since it began, in nanoseconds.
    pub cpu_ns: u64,
    /// Resident memory that is not shared with files, in bytes.
    pub memory_bytes: u64,
    /// Kernel memory of its histograms, in bytes.
    pub kernel_memory_bytes: u64,
    /// Drains of a module's histograms.
    pub drains: u64,
    /// Time that these took, in nanoseconds of the monotonic clock.
    pub drain_ns: u64,
    /// Drains that failed; the next that does not has what these lack.
    pub drain_failures: u64,
    /// When all modules that are measured were last drained, and none failed; `None` before the first time.
    pub last_drain: Option<Timestamp>,
    /// What became of completed intervals.
    pub intervals: Intervals,
    /// What the budget's probes cost now, as a share of one CPU; `None` before it was measured.
    pub overhead: Option<f64>,
    /// Times that handlers were shed for the budget.
    pub shed: u64,
    /// Pushes to a collector; `None` if there is none.
    pub pushes: Option<Pushes>,
}

/// What became of completed intervals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intervals {
    /// Recordings on disk; several intervals that waited are one.
    pub on_disk: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Kept in memory, as one sum a build, because they could not be written yet.
    pub waiting: u64,
    /// Recordings that were removed for newer ones, as `max-bytes` wants it.
    pub removed: u64,
    /// Neither on disk nor in memory: they could not be read from the kernel, more builds waited than memory is meant for, or a kill took them.
    pub lost: u64,
}

/// What became of pushes to a collector. What failed is not lost: the next push has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pushes {
    /// Pushes that the collector took.
    pub accepted: u64,
    /// Pushes that did not reach it, or that it refused.
    pub failed: u64,
    /// Data points that it refused in pushes that it took.
    pub rejected_points: u64,
}
