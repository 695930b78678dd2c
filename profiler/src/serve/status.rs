//! The status of a running daemon, for people and scripts.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use profiler_base::stats::mean;
use profiler_base::text::plural;
use profiler_export::cell::{Unit, bytes, clean};
use profiler_export::document::{Table, or_dash};
use profiler_recording::measure::HandlerMeasure;

use super::state::{Build, HandlerSum, Intervals, Module, NotMeasured, Own, Phase, State};

const HANDLER_COLUMNS: [&str; 8] =
    ["handler", "build", "calls", "calls/s", "average [us]", "TP99 [us]", "max [us]", "lost"];

/// The status of a daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// When it began.
    pub since: Timestamp,
    /// When these figures were collected.
    pub at: Timestamp,
    /// Its modules, in the order of its configuration.
    pub modules: Vec<ModuleStatus>,
    /// The handlers of the builds that are kept.
    pub handlers: Vec<HandlerStatus>,
    /// Where completed intervals are.
    pub intervals: Intervals,
    /// What the probes cost, as a share of one CPU, if that was measured.
    pub overhead: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleStatus {
    /// Its name.
    pub module: String,
    /// `waiting`, `measuring`, `released`, `refused` or `shed`.
    pub phase: String,
    /// Why it is refused or shed.
    pub reason: Option<String>,
    /// The build that is measured.
    pub build: Option<String>,
    /// Its handlers that are measured.
    pub handlers: usize,
    /// Its handlers that are shed for the budget.
    pub shed: usize,
    /// Other handlers that are not measured, each with the reason.
    pub missing: Vec<(String, String)>,
}

/// A handler in one build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HandlerStatus {
    /// Its name.
    pub handler: String,
    pub module: String,
    pub build: String,
    /// Calls measured.
    pub calls: u64,
    /// The same a second, by the last drain.
    pub calls_per_s: f64,
    /// Their average in nanoseconds.
    pub average_ns: Option<f64>,
    /// Their 99th percentile in nanoseconds.
    pub tp99_ns: Option<u64>,
    /// The longest in nanoseconds.
    pub max_ns: Option<u64>,
    /// Upper bound on the calls that are in no figure.
    pub lost: u64,
    /// Whether its probes are off for the budget.
    pub shed: bool,
}

impl Status {
    pub(super) fn of(state: &State) -> Self {
        let Own { intervals, overhead, .. } = state.own;
        let handlers = state.builds.iter().flat_map(|build| {
            let shown = build.handlers.iter().filter(|sum| sum.is_shown());
            shown.map(|sum| HandlerStatus::of(build, sum))
        });
        Self {
            since: state.since,
            at: state.at,
            modules: state.modules.iter().map(|module| ModuleStatus::of(module, state)).collect(),
            handlers: handlers.collect(),
            intervals,
            overhead,
        }
    }

    /// As tables.
    pub fn text(&self) -> String {
        let header = ["module", "phase", "build", "handlers", "shed", "missing"];
        let rows = self.modules.iter().map(ModuleStatus::row);
        let mut text = Table::figures(header, rows).text(None);
        for module in &self.modules {
            if let Some(reason) = &module.reason {
                text.push_str(&format!("{}: {}\n", module.module, clean(reason)));
            }
            for (name, why) in &module.missing {
                text.push_str(&format!("{}: {}: {}\n", module.module, clean(name), clean(why)));
            }
        }
        let books = format!(
            "{} interval{} on disk ({}), {} waiting to be written, {} removed for newer ones, {} lost; since {}",
            self.intervals.on_disk,
            plural(self.intervals.on_disk),
            bytes(self.intervals.bytes),
            self.intervals.waiting,
            self.intervals.removed,
            self.intervals.lost,
            self.since.strftime("%Y-%m-%d %H:%M:%S UTC"),
        );
        let rows = self.handlers.iter().map(HandlerStatus::row);
        if !self.handlers.is_empty() {
            text += "\n";
            text += &Table::figures(HANDLER_COLUMNS, rows).text(None);
        }
        format!("{text}\n{books}")
    }
}

impl ModuleStatus {
    fn of(module: &Module, state: &State) -> Self {
        let build = state.current(module);
        let (mut shed, mut missing) = (0, Vec::new());
        for (name, why) in build.into_iter().flat_map(|build| &build.not_measured) {
            match why {
                NotMeasured::Shed => shed += 1,
                NotMeasured::Missing(why) => missing.push((name.clone(), why.clone())),
            }
        }
        let handlers = build.into_iter().flat_map(|build| &build.handlers);
        Self {
            module: module.name.clone(),
            phase: module.phase.as_ref().to_owned(),
            reason: match &module.phase {
                Phase::Refused(reason) => Some(reason.clone()),
                Phase::Shed => Some("all handlers cost more than max-overhead".to_owned()),
                _ => None,
            },
            build: build.map(|build| build.id.clone()),
            handlers: handlers.filter(|handler| handler.calls_per_s.is_some()).count(),
            shed,
            missing,
        }
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.module.clone(),
            self.phase.clone(),
            self.build.as_deref().map_or("-", short).to_owned(),
            self.handlers.to_string(),
            self.shed.to_string(),
            self.missing.len().to_string(),
        ]
    }
}

impl HandlerStatus {
    fn of(build: &Build, sum: &HandlerSum) -> Self {
        let HandlerMeasure { durations, losses, .. } = &*sum.measure;
        Self {
            handler: sum.name.clone(),
            module: build.module.clone(),
            build: build.id.clone(),
            calls: durations.len(),
            calls_per_s: sum.calls_per_s.unwrap_or(0.0),
            average_ns: mean(durations.sum_ns(), durations.len()),
            tp99_ns: durations.quantile_ns(0.99),
            max_ns: durations.max_ns(),
            lost: losses.unmeasured(),
            shed: build.not_measured.get(&sum.name) == Some(&NotMeasured::Shed),
        }
    }

    fn row(&self) -> Vec<String> {
        let rate = if self.shed { "shed".to_owned() } else { format!("{:.1}", self.calls_per_s) };
        vec![
            self.handler.clone(),
            short(&self.build).to_owned(),
            self.calls.to_string(),
            rate,
            or_dash(self.average_ns.map(|ns| Unit::Us.average(ns))),
            or_dash(self.tp99_ns.map(|ns| Unit::Us.exact(ns))),
            or_dash(self.max_ns.map(|ns| Unit::Us.exact(ns))),
            self.lost.to_string(),
        ]
    }
}

/// As much of a build id as tells builds apart.
fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}
