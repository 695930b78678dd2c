//! Changes of figures.

use serde::{Deserialize, Serialize};

use super::placement::{Figures, Placed, Tail};
use super::{Observed, Part, Run, Side, Statistic};
use crate::load::{BuiltinKind, LoadOutcome, LoadSpec, LoadStatus};
use crate::recording::{DriverCost, HandlerRecording, Meter, Percentile};
use crate::stats::{self, Bounds, Change, RankTest};
use strum::VariantArray as _;

/// Confidence of each bound.
pub const CONFIDENCE: f64 = 0.95;

/// A figure of a handler on both sides, with its runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChangeRecord {
    /// Name of the load profile, if runs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The handler; `operation of LOAD` for what the driver costs an operation of that load; of runs without handlers a
    /// quantity of their load, such as `load connect: service time`.
    pub handler: String,
    /// Module that holds it; `null` is the kernel image.
    pub module: Option<String>,
    /// The figure.
    pub statistic: Statistic,
    /// `ns`, `instructions`, `iterations` or `calls`.
    pub unit: String,
    /// Placements that were compared; absent where calls were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placements: Option<usize>,
    /// The baseline's value, if any; counted, the median over placements.
    pub base: Option<f64>,
    /// The candidate's value, likewise.
    pub candidate: Option<f64>,
    /// Candidate minus baseline; counted, the median of that over placements.
    pub change: Option<f64>,
    /// What a single call makes of a percentile, or the kernel of an operation outside of the driver's functions, which is not in
    /// `change`; absent where it makes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_call: Option<f64>,
    /// The change if further placements, which have to decide about it, say the opposite of these; not stored.
    #[serde(skip)]
    pub(super) otherwise: Option<f64>,
    /// Lower and upper bound of the change, each at 95 %, `null` if there are too few runs; counted, the lowest and the highest of
    /// a placement.
    pub change_bounds: Option<[f64; 2]>,
    /// The change in percent of the baseline.
    pub percent: Option<f64>,
    /// The bounds of the change in percent of the baseline.
    pub percent_bounds: Option<[f64; 2]>,
    /// Exact p-value of the candidate being slower, not adjusted; counted calls have none.
    pub p_slower: Option<f64>,
    /// Exact p-value of the candidate being faster, likewise.
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

impl Calls {
    /// Of runs, of which some may lack the handler.
    fn of(runs: impl Iterator<Item = Option<u64>> + Clone) -> Self {
        Self {
            total: runs.clone().flatten().fold(0, u64::saturating_add),
            fewest: runs.clone().map(Option::unwrap_or_default).min().unwrap_or(0),
            known: runs.flatten().next().is_some(),
        }
    }
}

impl ChangeRecord {
    /// Calls of a side.
    pub fn calls(&self, side: Side) -> Calls {
        match side {
            Side::Baseline => self.base_calls,
            Side::Candidate => self.candidate_calls,
        }
    }

    /// What its figures are.
    pub fn meter(&self) -> Meter {
        let counted = self.placements.is_some() || self.unit == Statistic::Avg.unit(Meter::Exact);
        if counted { Meter::Exact } else { Meter::Probes }
    }

    /// Whether it takes further placements to say if the change is above `most`.
    pub(super) fn is_open(&self, most: f64) -> bool {
        let beyond = |change: f64| change > most;
        self.otherwise.zip(self.change).is_some_and(|(one, other)| beyond(one) != beyond(other))
    }

    /// Whether both sides say it. Of what only some calls and operations have there is nothing to say where none has it.
    fn is_known(&self) -> bool {
        match self.statistic {
            Statistic::Repeated | Statistic::Elsewhere => {
                self.change.is_some()
                    && [self.base, self.candidate].iter().any(|it| *it > Some(0.0))
            }
            _ => true,
        }
    }

    /// The handler, with its load profile if there are several.
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
pub fn operation_of(load: BuiltinKind) -> String {
    format!("{OPERATION_OF}{load}")
}

/// The load, if an operation stands in the place of the handler.
pub fn load_of(handler: &str) -> Option<&str> {
    handler.strip_prefix(OPERATION_OF)
}

/// All figures of all handlers, in the order of the baseline's; handlers that only the candidate has
/// come last, and after them what the driver costs an operation.
pub fn changes(part: &Part<'_>) -> Vec<ChangeRecord> {
    let mut handlers: Vec<(Option<String>, String)> = Vec::new();
    for run in part.runs() {
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
        .chain(part.operations().into_iter().flat_map(|load| {
            let figures = OF_OPERATIONS.map(|statistic| operation(part, load, statistic));
            figures.into_iter().filter(|record| record.change.is_some())
        }))
        .chain(half_counted(part))
        .chain(loads(part))
        .filter(ChangeRecord::is_known)
        .collect()
}

/// Operations of which some runs say what the driver costs them, and others do not.
fn half_counted(part: &Part<'_>) -> impl Iterator<Item = ChangeRecord> {
    let counted = part.operations();
    let mut loads: Vec<BuiltinKind> = Vec::new();
    for load in part.runs().flat_map(|run| &run.recording.driver_costs).map(|cost| cost.load) {
        if !counted.contains(&load) && !loads.contains(&load) {
            loads.push(load);
        }
    }
    loads.into_iter().map(move |load| without_a_value(part, &operation_of(load)))
}

/// The average of something that not every run has, so that there is nothing to compare.
fn without_a_value(part: &Part<'_>, name: &str) -> ChangeRecord {
    let once = Calls { total: 1, fewest: 1, known: true };
    let none = compared(part, name, Statistic::Avg, &Figures::default());
    ChangeRecord { base_calls: once, candidate_calls: once, ..none }
}

/// What loads take where nothing else was measured: with and without a driver, or with each of two.
///
/// Beside handlers they are not compared: probes are a part of their figures, and how long a load takes as a whole is not what
/// a handler's gate is about.
fn loads(part: &Part<'_>) -> Vec<ChangeRecord> {
    let mut records = Vec::new();
    let has_handlers = part.runs().any(|run| !run.recording.handlers.is_empty());
    if part.meter() == Meter::Exact || has_handlers {
        return records;
    }
    let first = part.runs().next().map_or(Vec::new(), |run| run.recording.loads_in_order());
    for (index, load) in first.into_iter().enumerate() {
        let name = match &load.spec {
            LoadSpec::Builtin { name, .. } => format!("load {name}"),
            other => format!("load {other}"),
        };
        for quantity in OfLoad::VARIANTS {
            let statistics = match quantity {
                OfLoad::Service => &Statistic::GATED[..],
                _ => &[Statistic::Avg],
            };
            let subject = format!("{name}: {quantity}");
            records.extend(statistics.iter().filter_map(|statistic| {
                let of = |run: &&Run| {
                    quantity.of(&run.recording.loads_in_order().get(index)?.outcome, *statistic)
                };
                let found = [&part.base, &part.candidate]
                    .map(|side| side.iter().map(of).collect::<Vec<Option<(Observed, u64)>>>());
                let observed: Figures = found
                    .each_ref()
                    .map(|side| side.iter().map(|it| it.map(|(value, _)| value)).collect());
                let sides = found.map(|side| side.into_iter().collect::<Option<Vec<_>>>());
                let [Some(base), Some(candidate)] = sides else {
                    // Where no run has it the load does not know it.
                    let is_somewhere = observed.iter().flatten().any(Option::is_some);
                    return (is_somewhere && *statistic == Statistic::Avg)
                        .then(|| without_a_value(part, &subject));
                };
                let [base_calls, candidate_calls] = [base, candidate]
                    .map(|side| Calls::of(side.iter().map(|(_, operations)| Some(*operations))));
                let compared = compared(part, &subject, *statistic, &observed);
                Some(ChangeRecord { base_calls, candidate_calls, ..compared })
            }));
        }
    }
    records
}

/// What is compared of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, strum::VariantArray)]
enum OfLoad {
    #[strum(to_string = "service time")]
    Service,
    #[strum(to_string = "CPU time of an operation")]
    Cpu,
    #[strum(to_string = "elapsed time")]
    Elapsed,
}

impl OfLoad {
    /// In nanoseconds, and of how many operations; `None` where the load does not know it.
    fn of(self, outcome: &LoadOutcome, statistic: Statistic) -> Option<(Observed, u64)> {
        let operations = outcome.operations.unwrap_or(1);
        match (self, statistic.quantile()) {
            (Self::Service, Some(quantile)) => {
                let times = &outcome.latency.as_ref()?.service;
                let value = times.quantile_ns(quantile)?;
                let observed = Observed::percentile(&times.histogram, times.count, quantile, value);
                Some((observed?, times.count))
            }
            (Self::Service, None) => {
                let times = &outcome.latency.as_ref()?.service;
                Some((Observed::exact(times.mean_ns()?), times.count))
            }
            (Self::Cpu, _) => Some((Observed::exact(outcome.cpu_ns_per_operation()?), operations)),
            // One that was stopped has taken as long as it was let.
            (Self::Elapsed, _) => (outcome.status == LoadStatus::Completed)
                .then(|| (Observed::exact(outcome.elapsed_ns as f64), 1)),
        }
    }
}

/// The share of a handler's calls that was lost.
pub(super) fn lost_share(handler: &HandlerRecording) -> f64 {
    let lost = handler.losses.unmeasured() as f64;
    if lost > 0.0 { lost / (lost + handler.count as f64) } else { 0.0 }
}

fn record(part: &Part<'_>, module: Option<&str>, name: &str, statistic: Statistic) -> ChangeRecord {
    let of = |side: &[&Run]| -> Vec<Option<Observed>> {
        side.iter()
            .map(|run| run.handler(module, name).and_then(|handler| statistic.of(handler)))
            .collect()
    };
    let (base, candidate) = (of(&part.base), of(&part.candidate));
    let lost = |run: &Run| run.handler(module, name).map_or(0.0, lost_share);
    let compared = compared(part, name, statistic, &[base, candidate]);
    ChangeRecord {
        module: module.map(str::to_owned),
        base_calls: calls(&part.base, module, name),
        candidate_calls: calls(&part.candidate, module, name),
        lost_share: part.runs().map(lost).fold(0.0, f64::max),
        ..compared
    }
}

/// The baseline's average of what a record is about.
pub(super) fn average(part: &Part<'_>, of: &ChangeRecord) -> Option<f64> {
    let is_it = |load: &BuiltinKind| operation_of(*load) == of.handler;
    let record = match part.operations().into_iter().find(is_it) {
        Some(load) => operation(part, load, Statistic::Avg),
        None => record(part, of.module.as_deref(), &of.handler, Statistic::Avg),
    };
    record.base
}

/// Figures of an operation.
const OF_OPERATIONS: [Statistic; 4] =
    [Statistic::Avg, Statistic::Tail, Statistic::Repeated, Statistic::Elsewhere];

/// The share of an operation outside of the driver's functions by which it may differ between builds that do the same there.
///
/// When the kernel refills a cache of its allocator, frees what waited for a grace period of RCU or does what a packet has put off
/// depends on where objects lie and on when the timer's interrupts come. Of Elkeid's driver on 6.1, two builds that differ by 17
/// instructions in one function: within the driver's functions the means of the operations of 35 loads differ by 17 (or by 0, or by
/// 34, as the function is called) under each of up to 9 placements, outside of them by up to 0.16 % in 102 of 103 pairs, mostly by
/// less than 0.03 %. A hook more is some hundred instructions, and is told of by itself.
const OUTSIDE: f64 = 0.002;

/// The same of a percentile, between the placements of one build and those of the other. Those of one placement differ by up to 4.3 %
/// between builds of a driver (`setsid`), and by 30 % between copies of a BPF agent (`ipv6`); the same percentile of what the
/// driver's functions take is exact.
const OUTSIDE_IF_TAIL: f64 = 0.05;

/// Instructions of a run within which the driver's work outside of system calls is one event more or less: a work item or what a
/// grace period of RCU lets it free may fall into the run or behind it.
const ONE_EVENT: f64 = 4_000.0;

/// A figure of an operation that is no tail; `None` where a recording has none.
fn of_operation(cost: &DriverCost, statistic: Statistic) -> Option<Observed> {
    match statistic {
        Statistic::Repeated => cost.repeated.map(Observed::exact),
        Statistic::Elsewhere => {
            let resolution = ONE_EVENT / cost.operations.max(1) as f64;
            cost.elsewhere.map(|value| Observed { resolution, ..Observed::exact(value) })
        }
        _ => {
            let outside = cost.within.map(|within| cost.with_ns - within);
            let outside = outside.map(|outside| [outside, outside * OUTSIDE]);
            Some(Observed { outside, ..Observed::exact(cost.added_ns()) })
        }
    }
}

/// The whole operation at this percentile, without what it takes without a driver, and the driver's part at the same percentile.
fn of_tail(cost: &DriverCost, percent: u8) -> Option<[Observed; 2]> {
    let tail = cost.tail.iter().find(|tail| tail.percent == percent)?;
    let observed = |of: Percentile, without: f64| {
        let [value, before, behind] = [of.instructions, of.before, of.behind]
            .map(|instructions| instructions as f64 - without);
        Observed { beside: [before, behind], ..Observed::exact(value) }
    };
    let outside = tail.whole.instructions as f64 - tail.within.instructions as f64;
    let whole = Observed {
        outside: Some([outside, outside * OUTSIDE_IF_TAIL]),
        ..observed(tail.whole, cost.without_ns)
    };
    Some([whole, observed(tail.within, 0.0)])
}

/// What the driver costs an operation of a load of which every run says so, or another figure of the operation.
fn operation(part: &Part<'_>, load: BuiltinKind, statistic: Statistic) -> ChangeRecord {
    let sides = [&part.base, &part.candidate]
        .map(|side| side.iter().filter_map(|run| run.cost(load)).collect::<Vec<&DriverCost>>());
    let name = operation_of(load);
    let compared = match statistic {
        Statistic::Tail => {
            let at = |percent: u8, which: usize| {
                let figure = |cost: &&DriverCost| of_tail(cost, percent).map(|both| both[which]);
                sides.each_ref().map(|costs| costs.iter().map(figure).collect())
            };
            let percentiles = (90..=99).map(|it| Tail { whole: at(it, 0), within: at(it, 1) });
            tail(part, &name, &percentiles.collect::<Vec<Tail>>())
        }
        _ => {
            let figure = |cost: &&DriverCost| of_operation(cost, statistic);
            let sides = sides.each_ref().map(|costs| costs.iter().map(figure).collect());
            compared(part, &name, statistic, &sides)
        }
    };
    let [base_calls, candidate_calls] =
        sides.each_ref().map(|costs| Calls::of(costs.iter().map(|cost| Some(cost.operations))));
    ChangeRecord { base_calls, candidate_calls, ..compared }
}

/// The tail of an operation; its figures are those of the percentile at which the whole operation became worse by most.
fn tail(part: &Part<'_>, name: &str, percentiles: &[Tail]) -> ChangeRecord {
    let changes = percentiles.iter().map(|tail| {
        let placed = Placed::of(&part.design, &tail.whole);
        (placed.map_or(f64::NEG_INFINITY, |placed| placed.change), tail)
    });
    // Of those that are alike the last.
    let shown = changes.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, tail)| tail);
    let figures = shown.map(|tail| tail.whole.clone()).unwrap_or_default();
    let record = compared(part, name, Statistic::Tail, &figures);
    let placed = shown.and_then(|shown| Placed::of_tail(&part.design, percentiles, shown));
    with_placed(record, placed)
}

/// A figure of both sides by the values of their runs, without what only calls have.
fn compared(part: &Part<'_>, name: &str, statistic: Statistic, figures: &Figures) -> ChangeRecord {
    let values = |observed: &[Option<Observed>]| -> Vec<Option<f64>> {
        observed.iter().map(|observed| observed.map(|observed| observed.value)).collect()
    };
    let [base_runs, candidate_runs] = figures.each_ref().map(|side| values(side));
    let resolution =
        figures.iter().flatten().flatten().map(|observed| observed.resolution).fold(0.0, f64::max);
    let known: Vec<f64> = base_runs.iter().flatten().copied().collect();
    let record = ChangeRecord {
        part: part.name.clone(),
        handler: name.to_owned(),
        statistic,
        unit: statistic.unit(part.meter()).to_owned(),
        placements: (part.meter() == Meter::Exact).then(|| part.design.placements()),
        base: alone(part, &base_runs),
        candidate: alone(part, &candidate_runs),
        base_spread: stats::spread(&known),
        base_runs,
        candidate_runs,
        resolution,
        ..ChangeRecord::default()
    };
    match part.meter() {
        Meter::Exact => with_placed(record, Placed::of(&part.design, figures)),
        Meter::Probes => sampled(part, record),
    }
}

/// The value of a side without the other.
fn alone(part: &Part<'_>, runs: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = runs.iter().flatten().copied().collect();
    match part.meter() {
        Meter::Exact => stats::median(&known),
        Meter::Probes => stats::level(&known, CONFIDENCE).map(|(mean, _)| mean),
    }
}

/// Adds to `record` how the runs differ, by placement.
fn with_placed(record: ChangeRecord, placed: Option<Placed>) -> ChangeRecord {
    let Some(Placed { sides: [base, candidate], change, ends, one_call, otherwise }) = placed
    else {
        return record;
    };
    let percent = |change: f64| (base > 0.0).then(|| change / base * 100.0);
    ChangeRecord {
        base: Some(base),
        candidate: Some(candidate),
        change: Some(change),
        one_call: (one_call != 0.0).then_some(one_call),
        otherwise,
        change_bounds: Some(ends),
        percent: percent(change),
        percent_bounds: percent(ends[0]).zip(percent(ends[1])).map(|(low, high)| [low, high]),
        ..record
    }
}

/// Adds to `record` how the runs differ, as samples.
fn sampled(part: &Part<'_>, record: ChangeRecord) -> ChangeRecord {
    let blocks = part.design.blocks(&record.base_runs, &record.candidate_runs);
    let change = stats::change(&blocks, CONFIDENCE);
    let change = change.as_ref();
    let test = stats::rank_test(&blocks);
    let bounds = |bounds: Option<Bounds>, scale: f64| {
        bounds.map(|bounds| [bounds.lower * scale, bounds.upper * scale])
    };
    ChangeRecord {
        base: change.map(|change| change.base).or(record.base),
        candidate: change.map(|change| change.candidate).or(record.candidate),
        change: change.map(Change::absolute),
        change_bounds: bounds(change.and_then(|change| change.difference), 1.0),
        percent: change.and_then(Change::share).map(|share| share * 100.0),
        percent_bounds: bounds(change.and_then(|change| change.relative), 100.0),
        p_slower: test.map(|RankTest { slower, .. }| slower),
        p_faster: test.map(|RankTest { faster, .. }| faster),
        ..record
    }
}

fn calls(side: &[&Run], module: Option<&str>, name: &str) -> Calls {
    Calls::of(side.iter().map(|run| run.handler(module, name).map(|handler| handler.count)))
}
