//! The daemon's state at one moment. Metrics, recordings and status are made of this alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use profiler_recording::measure::HandlerMeasure;
use profiler_recording::warning::{Handlers, SHED, Warning, WarningRecord};
use profiler_recording::{HandlerRecording, Recording};

/// Builds of a module that are kept: those that were attached to last. Bounds memory, and the number of series.
pub const MAX_BUILDS: usize = 4;

/// Shorter gaps in a handler's time with probes are attach latency; they are not reported.
const REPORTED_GAP_NS: u64 = 1_000_000;

/// The daemon's state at one moment.
#[derive(Debug, Clone)]
pub struct State {
    /// When the daemon began.
    pub since: Timestamp,
    /// When this was collected.
    pub at: Timestamp,
    /// The same by the monotonic clock.
    pub made: Instant,
    /// The configured modules, in order.
    pub modules: Vec<Module>,
    /// The last builds of each module, in the order in which it attached to them last. One that comes again goes on counting.
    pub builds: Vec<Build>,
    /// Figures about the daemon itself.
    pub own: Own,
}

/// A configured module.
#[derive(Debug, Clone)]
pub struct Module {
    pub name: String,
    /// What the daemon does with it.
    pub phase: Phase,
}

/// What the daemon does with a module. As text it is its name in status and metrics.
#[derive(Debug, Clone, PartialEq, Eq, strum::AsRefStr, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Phase {
    /// It is not loaded.
    Waiting,
    /// Its handlers are measured.
    Measuring,
    /// The probes are off, so that it can be unloaded; they come back with the next load of it.
    Released,
    /// Nothing can be measured, for this reason; it is tried again.
    Refused(String),
    /// All its handlers are shed for the budget, and no probe is left; they are tried again.
    Shed,
}

/// One build of a module, and all that was measured of it since the daemon began.
#[derive(Debug, Clone)]
pub struct Build {
    pub module: String,
    /// Its build id in hexadecimal, or its `srcversion`, or empty if it has neither.
    pub id: String,
    /// When it was last measured: the time of its latest drain.
    pub last: Timestamp,
    /// Its recording so far, without handlers and warnings: [`Build::recording`] has these.
    pub frame: Recording,
    /// Each handler that was measured in it.
    pub handlers: Vec<HandlerSum>,
    /// Handlers that are not measured now although the build is, by name, and why.
    pub not_measured: BTreeMap<String, NotMeasured>,
    /// Whether its handlers are held to the budget; `None` without one, and for a build that is not measured now.
    pub budget_enforced: Option<bool>,
}

/// A handler in one build, since the daemon began.
#[derive(Debug, Clone)]
pub struct HandlerSum {
    pub name: String,
    /// The sum of its intervals, which never shrinks. Older states share it until it changes.
    pub measure: Arc<HandlerMeasure>,
    /// Time in which it had probes, in nanoseconds.
    pub covered_ns: u64,
    /// Calls that are under way.
    pub in_flight: u64,
    /// Calls a second by the last drain; `None` while it has no probes.
    pub calls_per_s: Option<f64>,
}

impl State {
    /// The build with which a module is measured now, also while all its handlers are shed.
    pub(super) fn current(&self, module: &Module) -> Option<&Build> {
        let is_measured = matches!(module.phase, Phase::Measuring | Phase::Shed);
        self.builds.iter().rfind(|build| is_measured && build.module == module.name)
    }
}

impl Build {
    /// Its probes are off.
    pub(super) fn leave(&mut self) {
        for handler in &mut self.handlers {
            (handler.in_flight, handler.calls_per_s) = (0, None);
        }
    }

    /// All that was measured of it, as files have it.
    pub fn recording(&self) -> Recording {
        let handlers = self.handlers.iter().map(|sum| HandlerRecording::from_measure(&sum.measure));
        let mut recording = Recording { handlers: handlers.collect(), ..self.frame.clone() };
        // A handler that was measured before it was shed has figures.
        recording.left_out.retain(|left| {
            left.reason != SHED || self.handlers.iter().all(|sum| sum.name != left.name)
        });
        let covered = self.handlers.iter().map(|sum| (sum.name.as_str(), sum.covered_ns));
        let warning = partly_measured(covered, self.frame.window_ns);
        recording.warnings = warning.map(WarningRecord::from).into_iter().collect();
        recording
    }
}

impl HandlerSum {
    /// A handler with these figures.
    pub fn new(measure: HandlerMeasure) -> Self {
        let name = measure.target.label();
        Self { name, measure: Arc::new(measure), covered_ns: 0, in_flight: 0, calls_per_s: None }
    }

    /// Whether tables show it: one that only a glob matches is hidden before its first call.
    pub(super) fn is_shown(&self) -> bool {
        let HandlerMeasure { target, durations, losses, .. } = &*self.measure;
        !target.by_glob || !durations.is_empty() || !losses.is_idle()
    }
}

/// Why a handler is not measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotMeasured {
    /// Its probes cost more than the budget allows.
    Shed,
    /// This build does not have it, or it cannot be measured: why.
    Missing(String),
}

/// Figures about the daemon itself.
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
    /// Where completed intervals are.
    pub intervals: Intervals,
    /// The cost of all probes now, as a share of one CPU; `None` before it was measured.
    pub overhead: Option<f64>,
    /// Times that handlers were shed for the budget.
    pub shed: u64,
    /// Pushes to a collector; `None` if there is none.
    pub pushes: Option<Pushes>,
}

/// Where completed intervals are.
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
    /// Neither on disk nor in memory: more builds waited than memory is meant for, or a kill took them.
    pub lost: u64,
}

/// Outcomes of pushes to a collector. A failed push loses nothing: the next one has its figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pushes {
    /// Pushes that the collector took.
    pub accepted: u64,
    /// Pushes that did not reach it, or that it refused.
    pub failed: u64,
    /// Data points that it refused in pushes that it took.
    pub rejected_points: u64,
}

/// The warning about handlers that had probes for less than the window, if any. Each comes with its time, in nanoseconds.
pub(super) fn partly_measured<'a>(
    handlers: impl Iterator<Item = (&'a str, u64)>,
    window_ns: u64,
) -> Option<Warning> {
    let (mut names, mut words) = (Vec::new(), Vec::new());
    for (name, covered_ns) in handlers {
        if covered_ns.saturating_add(REPORTED_GAP_NS) < window_ns {
            let [covered, window] = [covered_ns, window_ns].map(|ns| ns as f64 / 1e9);
            words.push(format!("{name} {covered:.1} s of {window:.1} s"));
            names.push(name.to_owned());
        }
    }
    (!names.is_empty()).then(|| Warning::PartlyMeasured(Handlers(names), words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_with_less_than_the_window_are_named() {
        let covered = [("a", 60_000_000_000), ("b", 12_000_000_000), ("c", 0)];
        let warning = partly_measured(covered.into_iter(), 60_000_000_000);
        let expected = "b 12.0 s of 60.0 s, c 0.0 s of 60.0 s".to_owned();
        let handlers = Handlers(vec!["b".to_owned(), "c".to_owned()]);
        assert_eq!(warning, Some(Warning::PartlyMeasured(handlers, expected)));
        assert_eq!(partly_measured(covered[..1].iter().copied(), 60_000_000_000), None);
    }
}
