//! Changes of figures.

use serde::{Deserialize, Serialize};

use super::{Observed, Part, Run, Side, Statistic};
use crate::load::BuiltinKind;
use crate::recording::{DriverCost, HandlerRecording, Meter};
use crate::stats::{self, Bounds, Change, RankTest};

/// Confidence of each bound.
pub const CONFIDENCE: f64 = 0.95;

/// A figure of a handler on both sides, with its runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChangeRecord {
    /// Name of the load profile, if runs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The handler, or `operation of LOAD` for what the driver costs an operation of that load.
    pub handler: String,
    /// Module that holds it; `null` is the kernel image.
    pub module: Option<String>,
    /// The figure.
    pub statistic: Statistic,
    /// `ns` or `calls`.
    pub unit: String,
    /// The baseline's value, if any.
    pub base: Option<f64>,
    /// The candidate's value, if any.
    pub candidate: Option<f64>,
    /// Candidate minus baseline.
    pub change: Option<f64>,
    /// Lower and upper bound of the change, each at 95 %; `null` if there are too few runs.
    pub change_bounds: Option<[f64; 2]>,
    /// The change in percent of the baseline.
    pub percent: Option<f64>,
    /// Lower and upper bound in percent, each at 95 %.
    pub percent_bounds: Option<[f64; 2]>,
    /// Exact p-value of the candidate being slower; not adjusted.
    pub p_slower: Option<f64>,
    /// Exact p-value of the candidate being faster; not adjusted.
    pub p_faster: Option<f64>,
    /// Values of the baseline's runs; `null` is a run without a call.
    pub base_runs: Vec<Option<f64>>,
    /// Values of the candidate's runs.
    pub candidate_runs: Vec<Option<f64>>,
    /// Calls in the baseline.
    pub base_calls: Calls,
    /// Calls in the candidate.
    pub candidate_calls: Calls,
    /// Error bound from the width of a histogram's bucket: the value may be this much too high.
    pub resolution: f64,
    /// Share of lost calls, of the run with the largest.
    pub lost_share: f64,
    /// Spread of the baseline's runs: largest minus smallest, over the median.
    pub base_spread: Option<f64>,
}

/// Calls of a handler on one side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Calls {
    /// In all runs.
    pub total: u64,
    /// In the run with the fewest; 0 if a run lacks the handler.
    pub fewest: u64,
    /// Whether any run has the handler at all.
    pub known: bool,
}

impl ChangeRecord {
    /// Bounds of the change.
    pub(super) fn difference(&self) -> Option<Bounds> {
        self.change_bounds.map(|[lower, upper]| Bounds { lower, upper })
    }

    /// Bounds of the change, as a share of the baseline.
    pub(super) fn relative(&self) -> Option<Bounds> {
        self.percent_bounds
            .map(|[lower, upper]| Bounds { lower: lower / 100.0, upper: upper / 100.0 })
    }

    /// Calls of a side.
    #[must_use]
    pub fn calls(&self, side: Side) -> Calls {
        match side {
            Side::Baseline => self.base_calls,
            Side::Candidate => self.candidate_calls,
        }
    }

    /// What its figures are.
    #[must_use]
    pub fn meter(&self) -> Meter {
        if self.unit == Statistic::Avg.unit(Meter::Exact) { Meter::Exact } else { Meter::Probes }
    }

    /// The handler, with its load profile if there are several.
    #[must_use]
    pub fn subject(&self) -> String {
        subject(self.part.as_deref(), &self.handler)
    }
}

/// A handler, with its load profile if there are several.
pub(crate) fn subject(part: Option<&str>, handler: &str) -> String {
    match part {
        Some(part) => format!("{part}: {handler}"),
        None => handler.to_owned(),
    }
}

/// Before the load's name in the place of a handler's.
const OPERATION_OF: &str = "operation of ";

/// What stands in the place of a handler where the driver's cost per operation of `load` is judged.
#[must_use]
pub fn operation_of(load: BuiltinKind) -> String {
    format!("{OPERATION_OF}{load}")
}

/// The load, if an operation stands in the place of the handler.
#[must_use]
pub fn load_of(handler: &str) -> Option<&str> {
    handler.strip_prefix(OPERATION_OF)
}

/// All figures of all handlers, in the order of the baseline's; handlers that only the candidate has
/// come last, and after them what the driver costs an operation.
#[must_use]
pub fn changes(part: &Part<'_>) -> Vec<ChangeRecord> {
    let mut handlers: Vec<(Option<String>, String)> = Vec::new();
    for run in part.base.iter().chain(&part.candidate) {
        for handler in &run.recording.handlers {
            let key = (handler.module.clone(), handler.name.clone());
            if !handlers.contains(&key) {
                handlers.push(key);
            }
        }
    }
    handlers
        .iter()
        .flat_map(|(module, name)| {
            Statistic::ALL.map(|statistic| record(part, module.as_deref(), name, statistic))
        })
        .chain(part.operations().into_iter().map(|load| operation(part, load)))
        .collect()
}

/// The share of a handler's calls that was lost.
pub(super) fn lost_share(handler: &HandlerRecording) -> f64 {
    let lost = handler.losses.unmeasured() as f64;
    if lost > 0.0 { lost / (lost + handler.count as f64) } else { 0.0 }
}

/// How far a percentile moves if one call more or less lies beyond it. Calls of one kind take the same to the
/// instruction, so a percentile next to the share of a kind jumps from that kind to the next with a single call: of
/// 60 calls of a handler that refills a cache in 3 or 4, TP95 is the one or the other.
fn step(handler: &HandlerRecording, statistic: Statistic) -> f64 {
    let rank = statistic.quantile().and_then(|q| stats::nearest_rank(handler.count, q));
    let Some(rank) = rank else { return 0.0 };
    let at = |rank: u64| {
        let mut below = 0;
        let mut buckets = handler.histogram.buckets.iter();
        let bucket = buckets.find(|bucket| {
            below += bucket.count;
            below >= rank
        });
        bucket.map(|bucket| bucket.to_ns as f64)
    };
    let [before, here, after] = [rank.saturating_sub(1).max(1), rank, rank + 1].map(at);
    let Some(here) = here else { return 0.0 };
    before.map_or(0.0, |before| here - before).max(after.map_or(0.0, |after| after - here))
}

fn record(part: &Part<'_>, module: Option<&str>, name: &str, statistic: Statistic) -> ChangeRecord {
    let of = |side: &[&Run]| -> Vec<Option<Observed>> {
        side.iter()
            .map(|run| run.handler(module, name).and_then(|handler| statistic.of(handler)))
            .collect()
    };
    let (base, candidate) = (of(&part.base), of(&part.candidate));
    let handlers = part.base.iter().chain(&part.candidate);
    let handlers = handlers.filter_map(|run| run.handler(module, name));
    let step = match part.meter() {
        Meter::Exact => handlers.map(|handler| step(handler, statistic)).fold(0.0, f64::max),
        Meter::Probes => 0.0,
    };
    let lost = |run: &&Run| run.handler(module, name).map_or(0.0, lost_share);
    let compared = compared(part, name, statistic, [base, candidate]);
    ChangeRecord {
        module: module.map(str::to_owned),
        base_calls: calls(&part.base, module, name),
        candidate_calls: calls(&part.candidate, module, name),
        resolution: compared.resolution.max(step),
        lost_share: part.base.iter().chain(&part.candidate).map(lost).fold(0.0, f64::max),
        ..compared
    }
}

/// What the driver costs an operation of a load of which every run says so.
fn operation(part: &Part<'_>, load: BuiltinKind) -> ChangeRecord {
    let costs = |side: &[&Run]| -> Vec<DriverCost> {
        side.iter().filter_map(|run| run.cost(load).cloned()).collect()
    };
    let sides = [costs(&part.base), costs(&part.candidate)];
    let observed = |costs: &Vec<DriverCost>| {
        let of_run = |cost: &DriverCost| Observed { value: cost.added_ns(), resolution: 0.0 };
        costs.iter().map(of_run).map(Some).collect()
    };
    let [base_calls, candidate_calls] = sides.each_ref().map(|costs| {
        let operations = || costs.iter().map(|cost| cost.operations);
        let total = operations().fold(0, u64::saturating_add);
        Calls { total, fewest: operations().min().unwrap_or(0), known: true }
    });
    let observed = sides.each_ref().map(observed);
    let compared = compared(part, &operation_of(load), Statistic::Avg, observed);
    ChangeRecord { base_calls, candidate_calls, ..compared }
}

/// A figure of both sides by the values of their runs, without what only calls have.
fn compared(
    part: &Part<'_>,
    name: &str,
    statistic: Statistic,
    [base, candidate]: [Vec<Option<Observed>>; 2],
) -> ChangeRecord {
    let values = |observed: &[Option<Observed>]| -> Vec<Option<f64>> {
        observed.iter().map(|observed| observed.map(|observed| observed.value)).collect()
    };
    let (base_runs, candidate_runs) = (values(&base), values(&candidate));
    let blocks = part.design.blocks(&base_runs, &candidate_runs);
    let change = stats::change(&blocks, CONFIDENCE);
    let test = stats::rank_test(&blocks);
    let resolution = base
        .iter()
        .chain(&candidate)
        .flatten()
        .map(|observed| observed.resolution)
        .fold(0.0, f64::max);
    let known: Vec<f64> = base_runs.iter().flatten().copied().collect();
    let alone = |values: &[Option<f64>]| {
        let known: Vec<f64> = values.iter().flatten().copied().collect();
        stats::level(&known, CONFIDENCE).map(|(mean, _)| mean)
    };
    let bounds = |bounds: Option<Bounds>, scale: f64| {
        bounds.map(|bounds| [bounds.lower * scale, bounds.upper * scale])
    };
    ChangeRecord {
        part: part.name.clone(),
        handler: name.to_owned(),
        module: None,
        statistic,
        unit: statistic.unit(part.meter()).to_owned(),
        base: change.as_ref().map(|change| change.base).or_else(|| alone(&base_runs)),
        candidate: change
            .as_ref()
            .map(|change| change.candidate)
            .or_else(|| alone(&candidate_runs)),
        change: change.as_ref().map(Change::absolute),
        change_bounds: bounds(change.as_ref().and_then(|change| change.difference), 1.0),
        percent: change.as_ref().and_then(Change::share).map(|share| share * 100.0),
        percent_bounds: bounds(change.as_ref().and_then(|change| change.relative), 100.0),
        p_slower: test.map(|RankTest { slower, .. }| slower),
        p_faster: test.map(|RankTest { faster, .. }| faster),
        base_calls: Calls::default(),
        candidate_calls: Calls::default(),
        base_spread: stats::spread(&known),
        base_runs,
        candidate_runs,
        resolution,
        lost_share: 0.0,
    }
}

fn calls(side: &[&Run], module: Option<&str>, name: &str) -> Calls {
    let counts: Vec<Option<u64>> =
        side.iter().map(|run| run.handler(module, name).map(|handler| handler.count)).collect();
    Calls {
        total: counts.iter().flatten().fold(0, |total, count| total.saturating_add(*count)),
        fewest: counts.iter().map(|count| count.unwrap_or(0)).min().unwrap_or(0),
        known: counts.iter().any(Option::is_some),
    }
}
