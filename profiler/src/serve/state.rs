//! What the daemon knows at one moment. All that it shows (metrics, recordings, status) is made of this alone.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::profile::Profile;

/// What the daemon knows at one moment.
#[derive(Debug, Clone)]
pub struct State {
    /// When the daemon began.
    pub since: Timestamp,
    /// When this was collected.
    pub at: Timestamp,
    /// The modules that it is for, in the order of its configuration.
    pub modules: Vec<Module>,
    /// Each build that it has measured, in the order in which it met them. One that comes again goes on counting.
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
    /// Nothing can be measured, and why.
    Refused(String),
}

/// One build of a module, and all that was measured of it since the daemon began.
#[derive(Debug, Clone)]
pub struct Build {
    /// Its module.
    pub module: String,
    /// Its build id in hexadecimal, or its `srcversion`, or empty if it has neither.
    pub id: String,
    /// The recording so far: the sum of its intervals. Its histograms, counts and losses never become less.
    pub recording: Profile,
    /// Handlers by name, that are not measured now although the build is, and why: shed for the budget, gone in this build.
    pub not_measured: BTreeMap<String, NotMeasured>,
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
    /// Drains of the kernel's histograms.
    pub drains: u64,
    /// Time that these took, in nanoseconds of the monotonic clock.
    pub drain_ns: u64,
    /// Completed intervals that are on disk, and their bytes.
    pub stored: u64,
    /// Bytes of these.
    pub stored_bytes: u64,
    /// Completed intervals that could not be stored, or were removed for want of room.
    pub not_stored: u64,
    /// What the budget's probes cost now, as a share of one CPU; `None` before it was measured.
    pub overhead: Option<f64>,
    /// Times that handlers were shed for the budget.
    pub shed: u64,
}
