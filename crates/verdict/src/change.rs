//! Changes of figures.

use itertools::Itertools as _;

use profiler_base::stats::{self, Block, Change};
use profiler_recording::loads::{BuiltinKind, LoadOutcome, LoadSpec, LoadStatus};
use profiler_recording::{DriverCost, Meter, Percentile};

use super::placement::{Figures, Pair, pairs, placed, placed_tail};
use super::{Calls, ChangeRecord, Observed, Part, Run, Statistic};

/// Confidence of each bound.
pub const CONFIDENCE: f64 = 0.95;

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
    let handlers = part.runs().flat_map(|run| &run.recording.handlers);
    let handlers = handlers.map(|it| (it.module.as_deref(), &*it.name)).unique();
    let of_handlers = handlers.flat_map(|(module, name)| {
        Statistic::ALL.map(|statistic| record(part, module, name, statistic))
    });
    let loads = part.runs().flat_map(|run| &run.recording.driver_costs);
    let of_operations = loads.map(|cost| cost.load).unique().flat_map(|load| {
        OF_OPERATIONS.into_iter().filter_map(move |statistic| operation(part, load, statistic))
    });
    let all = of_handlers.chain(of_operations).chain(of_loads(part));
    all.filter(ChangeRecord::is_known).collect()
}

/// Calls in a run and the figure, if they have one; `None` of a run that lacks what it is of.
type Taken = Option<(u64, Option<Observed>)>;
type OfRun<'a> = &'a dyn Fn(&Run) -> Taken;

/// A figure that every run has to have. If only some have it there is nothing to compare, and that is said at the average.
fn of_all_runs(
    part: &Part<'_>,
    name: &str,
    statistic: Statistic,
    of: OfRun<'_>,
) -> Option<ChangeRecord> {
    let figures: Vec<Option<Observed>> = part.runs().map(|run| of(run)?.1).collect();
    if figures.iter().all(Option::is_some) {
        return Some(compared(part, name, statistic, None, of));
    }
    let is_said = statistic == Statistic::Avg && figures.iter().any(Option::is_some);
    is_said.then(|| compared(part, name, statistic, None, &|_| Some((1, None))))
}

/// What loads take where nothing else was measured: with and without a driver, or with each of two.
///
/// Beside handlers they are not compared: probes are a part of their figures, and how long a load takes as a whole is not what
/// a handler's gate is about.
fn of_loads(part: &Part<'_>) -> Vec<ChangeRecord> {
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
        for (at, (quantity, statistic, _)) in figures_of(&load.outcome).into_iter().enumerate() {
            let of_run = |run: &Run| {
                let load = *run.recording.loads_in_order().get(index)?;
                figures_of(&load.outcome)[at].2
            };
            records.extend(of_all_runs(part, &format!("{name}: {quantity}"), statistic, &of_run));
        }
    }
    records
}

/// What a load took.
fn figures_of(outcome: &LoadOutcome) -> [(&str, Statistic, Taken); 7] {
    let [avg, tp50, tp90, tp95, tp99] =
        Statistic::GATED.map(|it| ("service time", it, service_time(outcome, it)));
    let cpu = outcome.cpu_ns_per_operation();
    let cpu = cpu.map(|time| (outcome.operations.unwrap_or(1), Some(Observed::exact(time))));
    // A load that was stopped has taken as long as it was let.
    let is_complete = outcome.status == LoadStatus::Completed;
    let elapsed = is_complete.then(|| (1, Some(Observed::exact(outcome.elapsed_ns as f64))));
    let cpu = ("CPU time of an operation", Statistic::Avg, cpu);
    [avg, tp50, tp90, tp95, tp99, cpu, ("elapsed time", Statistic::Avg, elapsed)]
}

/// The service time of a load's operations, and of how many.
fn service_time(outcome: &LoadOutcome, statistic: Statistic) -> Taken {
    let times = &outcome.latency.as_ref()?.service;
    let observed = match statistic.quantile() {
        Some(quantile) => {
            let value = times.quantile_ns(quantile)?;
            Observed::percentile(&times.histogram, times.count, quantile, value)?
        }
        None => Observed::exact(times.mean_ns()?),
    };
    Some((times.count, Some(observed)))
}

fn record(part: &Part<'_>, module: Option<&str>, name: &str, statistic: Statistic) -> ChangeRecord {
    let [base_lost, candidate_lost_share] = [&part.base, &part.candidate].map(|runs| {
        let handlers = runs.iter().filter_map(|run| run.handler(module, name));
        handlers.map(|handler| handler.losses.share(handler.count)).fold(0.0, f64::max)
    });
    let lost_share = base_lost.max(candidate_lost_share);
    let record = compared(part, name, statistic, None, &|run| {
        let handler = run.handler(module, name)?;
        Some((handler.count, statistic.of(handler)))
    });
    let module = module.map(str::to_owned);
    ChangeRecord { module, lost_share, candidate_lost_share, ..record }
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
fn tail_of(cost: &DriverCost, percent: u8) -> Option<[Observed; 2]> {
    let tail = cost.tail.iter().find(|tail| tail.percent == percent)?;
    let outside = tail.whole.instructions as f64 - tail.within.instructions as f64;
    let whole = Observed {
        outside: Some([outside, outside * OUTSIDE_IF_TAIL]),
        ..observed(tail.whole, cost.without_ns)
    };
    Some([whole, observed(tail.within, 0.0)])
}

/// A percentile with the calls beside it, less what they take `without` a driver.
fn observed(of: Percentile, without: f64) -> Observed {
    let [value, before, behind] =
        [of.instructions, of.before, of.behind].map(|instructions| instructions as f64 - without);
    Observed { beside: [before, behind], ..Observed::exact(value) }
}

/// The tail at this percentile, of whole operations and of the driver's part, by placement.
fn tail(part: &Part<'_>, load: BuiltinKind, percent: u8) -> [Vec<Pair>; 2] {
    [0, 1].map(|which| {
        let figures = [&part.base, &part.candidate].map(|runs| {
            let tails = runs.iter().map(|run| tail_of(run.cost(load)?, percent));
            tails.map(|tail| Some(tail?[which])).collect()
        });
        pairs(&part.design, &figures)
    })
}

/// What the driver costs an operation of a load, or another figure of the operation.
fn operation(part: &Part<'_>, load: BuiltinKind, statistic: Statistic) -> Option<ChangeRecord> {
    let name = operation_of(load);
    if statistic != Statistic::Tail {
        return of_all_runs(part, &name, statistic, &|run| {
            let cost = run.cost(load)?;
            Some((cost.operations, of_operation(cost, statistic)))
        });
    }
    let percentiles: Vec<[Vec<Pair>; 2]> =
        (90..=99).map(|percent| tail(part, load, percent)).collect();
    // Shown is the percentile at which the whole operation became worse by most; of those that are alike the last.
    let changes = (90..)
        .zip(&percentiles)
        .filter_map(|(percent, [whole, _])| Some((placed(whole)?.change?, percent, whole)));
    let (_, percent, shown) = changes.max_by(|(one, ..), (other, ..)| one.total_cmp(other))?;
    let of_tail = placed_tail(&percentiles, shown);
    Some(compared(part, &name, statistic, of_tail, &|run| {
        let cost = run.cost(load)?;
        Some((cost.operations, tail_of(cost, percent).map(|[whole, _]| whole)))
    }))
}

/// A figure of both sides by the values of their runs; that of a tail differs `as_tail`.
fn compared(
    part: &Part<'_>,
    name: &str,
    statistic: Statistic,
    as_tail: Option<ChangeRecord>,
    of: OfRun<'_>,
) -> ChangeRecord {
    let sides = [&part.base, &part.candidate]
        .map(|runs| runs.iter().map(|run| of(run)).collect::<Vec<_>>());
    let figures: Figures = sides.each_ref().map(|runs| runs.iter().map(|run| (*run)?.1).collect());
    let [base_runs, candidate_runs] = figures.each_ref().map(|side| -> Vec<Option<f64>> {
        side.iter().map(|observed| observed.map(|observed| observed.value)).collect()
    });
    let [base_calls, candidate_calls] =
        sides.map(|runs| Calls::of(runs.iter().map(|run| Some((*run)?.0))));
    let resolutions = figures.iter().flatten().flatten().map(|observed| observed.resolution);
    let [known, of_candidate] = [&base_runs, &candidate_runs]
        .map(|runs| runs.iter().flatten().copied().collect::<Vec<f64>>());
    let differs = match part.meter() {
        Meter::Exact => as_tail.or_else(|| placed(&pairs(&part.design, &figures))),
        Meter::Probes => Some(sampled(&part.design.blocks(&base_runs, &candidate_runs))),
    };
    let differs = differs.unwrap_or_default();
    ChangeRecord {
        part: part.name.clone(),
        handler: name.to_owned(),
        statistic,
        unit: statistic.unit(part.meter()).to_owned(),
        placements: (part.meter() == Meter::Exact).then(|| part.design.placements()),
        base: differs.base.or_else(|| Some(alone(part.meter(), &known)?.0)),
        candidate: differs.candidate.or_else(|| Some(alone(part.meter(), &of_candidate)?.0)),
        resolution: resolutions.fold(0.0, f64::max),
        base_spread: stats::spread(&known),
        base_runs,
        candidate_runs,
        base_calls,
        candidate_calls,
        ..differs
    }
}

/// The value of a side without the other, and its bounds: counted, and of one run, the value itself.
pub(super) fn alone(meter: Meter, values: &[f64]) -> Option<(f64, [f64; 2])> {
    let (value, bounds) = match meter {
        Meter::Exact => (stats::median(values)?, None),
        Meter::Probes => stats::level(values, CONFIDENCE)?,
    };
    Some((value, bounds.unwrap_or([value; 2])))
}

/// How samples differ, in a record that says nothing else.
fn sampled(blocks: &[Block]) -> ChangeRecord {
    let change = stats::change(blocks, CONFIDENCE);
    let change = change.as_ref();
    let relative = change.and_then(|change| change.relative);
    let test = stats::rank_test(blocks);
    ChangeRecord {
        base: change.map(|change| change.base),
        candidate: change.map(|change| change.candidate),
        change: change.map(Change::absolute),
        change_bounds: change.and_then(|change| change.difference),
        percent: change.and_then(Change::share).map(|share| share * 100.0),
        percent_bounds: relative.map(|ends| ends.map(|share| share * 100.0)),
        p_slower: test.map(|test| test.slower),
        p_faster: test.map(|test| test.faster),
        ..ChangeRecord::default()
    }
}
