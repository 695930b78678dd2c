//! What a running daemon does, for people and scripts.

use std::collections::HashMap;

use comfy_table::Row;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::state::{Build, Intervals, NotMeasured, Own, Phase, State};
use crate::export::cell::{Unit, bytes, clean};
use crate::export::grid;
use crate::recording::HandlerRecording;
use crate::text::plural;

/// What a daemon does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// When it began.
    pub since: Timestamp,
    /// When these figures were collected.
    pub at: Timestamp,
    /// Its modules, in the order of its configuration.
    pub modules: Vec<ModuleStatus>,
    /// The handlers of all builds that it has measured since it began.
    pub handlers: Vec<HandlerStatus>,
    /// What became of completed intervals.
    pub intervals: Intervals,
    /// What the probes cost, as a share of one CPU, if that was measured.
    pub overhead: Option<f64>,
}

/// A module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleStatus {
    /// Its name.
    pub module: String,
    /// `waiting`, `measuring`, `released` or `refused`.
    pub phase: String,
    /// Why it is refused.
    pub reason: Option<String>,
    /// The build that is measured.
    pub build: Option<String>,
    /// Handlers of that which are measured.
    pub handlers: usize,
    /// Handlers of that which are shed for the budget.
    pub shed: usize,
    /// Other handlers that are not measured, each with the reason.
    pub missing: Vec<(String, String)>,
}

/// A handler in one build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HandlerStatus {
    /// Its name.
    pub handler: String,
    /// Its module.
    pub module: String,
    /// The build.
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

/// What is measured now, by module.
pub(super) type Measured = HashMap<String, OfModule>;

/// What is measured of a module.
#[derive(Debug, Default)]
pub(super) struct OfModule {
    /// Id of its build.
    pub(super) build: String,
    /// Calls a second of each handler.
    pub(super) rates: HashMap<String, f64>,
}

impl Status {
    /// What `state` says, with what is `measured` now.
    pub(super) fn of(state: &State, measured: &Measured) -> Self {
        let Own { intervals, overhead, .. } = state.own;
        let module = |module: &super::state::Module| {
            let (phase, reason) = match &module.phase {
                Phase::Waiting => ("waiting", None),
                Phase::Measuring => ("measuring", None),
                Phase::Released => ("released", None),
                Phase::Refused(reason) => ("refused", Some(reason.clone())),
                Phase::Shed => {
                    ("shed", Some("all handlers cost more than max-overhead".to_owned()))
                }
            };
            let now = measured.get(&module.name);
            let is_now = |build: &&Build| {
                build.module == module.name && now.is_some_and(|now| now.build == build.id)
            };
            let build = state.builds.iter().find(is_now);
            let not_measured = || build.into_iter().flat_map(|build| &build.not_measured);
            let shed = not_measured().filter(|(_, why)| **why == NotMeasured::Shed).count();
            let missing = not_measured().filter_map(|(name, why)| match why {
                NotMeasured::Missing(why) => Some((name.clone(), why.clone())),
                NotMeasured::Shed => None,
            });
            ModuleStatus {
                module: module.name.clone(),
                phase: phase.to_owned(),
                reason,
                build: build.map(|build| build.id.clone()),
                handlers: now.map_or(0, |now| now.rates.len()),
                shed,
                missing: missing.collect(),
            }
        };
        let handlers = state.builds.iter().flat_map(|build| {
            let now = measured.get(&build.module).filter(|now| now.build == build.id);
            let of = move |handler| HandlerStatus::of(build, handler, now);
            build.recording.shown().map(of)
        });
        Self {
            since: state.since,
            at: state.at,
            modules: state.modules.iter().map(module).collect(),
            handlers: handlers.collect(),
            intervals,
            overhead,
        }
    }

    /// As tables, in `lines` lines at most.
    #[must_use]
    pub fn text(&self, lines: usize) -> String {
        let header = ["module", "phase", "build", "handlers", "shed", "missing"];
        let row = |module: &ModuleStatus| {
            Row::from([
                clean(&module.module).into_owned(),
                module.phase.clone(),
                module.build.as_deref().map_or("-", short).to_owned(),
                module.handlers.to_string(),
                module.shed.to_string(),
                module.missing.len().to_string(),
            ])
        };
        let mut text = grid::figures(&header, self.modules.iter().map(row), None);
        for module in &self.modules {
            if let Some(reason) = &module.reason {
                text.push_str(&format!("\n{}: {}", module.module, clean(reason)));
            }
            for (name, why) in &module.missing {
                text.push_str(&format!("\n{}: {}: {}", module.module, clean(name), clean(why)));
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
        // The empty lines, the head of the table and its rule, the line that counts the rest, and the books.
        let room = lines.saturating_sub(text.lines().count() + 6).max(1);
        let header = [
            "handler",
            "build",
            "calls",
            "calls/s",
            "average [us]",
            "TP99 [us]",
            "max [us]",
            "lost",
        ];
        let rows = self.handlers.iter().take(room).map(HandlerStatus::row);
        if !self.handlers.is_empty() {
            text.push_str(&format!("\n\n{}", grid::figures(&header, rows, None)));
        }
        if self.handlers.len() > room {
            text.push_str(&format!("\nand {} more handlers", self.handlers.len() - room));
        }
        format!("{text}\n\n{books}")
    }
}

impl HandlerStatus {
    /// Of a build, which `now` is measured.
    fn of(build: &Build, handler: &HandlerRecording, now: Option<&OfModule>) -> Self {
        let rate = now.and_then(|now| now.rates.get(&handler.name));
        Self {
            handler: handler.name.clone(),
            module: build.module.clone(),
            build: build.id.clone(),
            calls: handler.count,
            calls_per_s: rate.copied().unwrap_or(0.0),
            average_ns: handler.mean_ns(),
            tp99_ns: handler.quantile_ns(0.99),
            max_ns: handler.max_ns,
            lost: handler.losses.unmeasured(),
            shed: build.not_measured.get(&handler.name) == Some(&NotMeasured::Shed),
        }
    }

    fn row(&self) -> Row {
        let exact = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| Unit::Us.exact(ns));
        let rate = if self.shed { "shed".to_owned() } else { format!("{:.1}", self.calls_per_s) };
        Row::from([
            clean(&self.handler).into_owned(),
            short(&self.build).to_owned(),
            self.calls.to_string(),
            rate,
            self.average_ns.map_or("-".to_owned(), |ns| Unit::Us.average(ns)),
            exact(self.tp99_ns),
            exact(self.max_ns),
            self.lost.to_string(),
        ])
    }
}

/// As much of a build id as tells builds apart.
fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}
