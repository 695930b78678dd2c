//! From what the emulator counted to a recording.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::OnceLock;

use super::counts::{self, Calls, Counts};
use super::left;
use super::lines::Lines;
use super::plan::{BootPlan, CountedHandler, Length, RunSpec, Step};
use crate::error::{Failure, exit};
use crate::load::BuiltinKind;
use crate::recording::call_tree::{TreeFunction, TreeNode, TreePlace};
use crate::recording::measure::Losses;
use crate::recording::{
    CallTree, Distribution, DriverCost, HandlerRecording, HistogramLayout, Meter, Recording,
    SelfTimeRecording,
};
use crate::stats::{self, Durations};
use crate::verdict::Side;

/// Up to 262,143 instructions each number has a bucket of its own.
const DIGITS: u8 = 5;

/// Most instructions of a call that are told apart; sums, minimum and maximum are exact above, too.
const HIGHEST: u64 = 1 << 28;

const LAYOUT: HistogramLayout = HistogramLayout {
    precision_digits: DIGITS,
    lowest_ns: 1,
    highest_ns: HIGHEST,
    kernel_memory_bytes: 0,
    direct: None,
};

/// Adds to `recording`, which has the load and the machine, what was counted in `step`. `known` keeps the source lines of
/// builds, which take long to read.
pub(super) fn add(
    recording: &mut Recording,
    plan: &BootPlan,
    step: &Step,
    known: &mut HashMap<Side, Lines>,
) -> Result<(), Failure> {
    let failed = |what: String| {
        let text = format!("boot {}, run {}: {what}", plan.boot, step.order);
        Failure::new(exit::LAB_FAILED, text)
    };
    let damaged = |why: String| {
        failed(format!("the counts of QEMU's plugin are damaged: {why}; measure again"))
    };
    let text = read(&step.counts).map_err(damaged)?;
    let counts = counts::parse(&text).map_err(damaged)?;
    recording.driver_costs = cost(plan, step, &counts).map_err(damaged)?;
    let mut handlers: Vec<CountedHandler> = left::read(&step.handlers, counts::MAX_BYTES)
        .map_err(|error| error.to_string())
        .and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()))
        .map_err(|why| failed(format!("cannot read {}: {why}", step.handlers.display())))?;
    let wanted = plan.work.get(step.job).and_then(|job| job.wanted.as_ref());
    handlers.retain(|handler| wanted.is_none_or(|wanted| wanted.contains(&handler.name)));
    let build = plan.build(step.side);
    let lines = match known.entry(step.side) {
        Entry::Occupied(lines) => lines.into_mut(),
        Entry::Vacant(place) => place.insert(
            Lines::read(&build.file)
                .map_err(|why| failed(format!("cannot read {}: {why}", build.file.display())))?,
        ),
    };
    let ran = recording.modules.first().and_then(|module| module.build_id.as_deref());
    if let (Some(ran), Some(read)) = (ran, lines.build_id())
        && ran != read
    {
        return Err(failed(format!(
            "the {} that ran has build id {ran}, and the file that its source lines are in {read}: it was replaced \
             meanwhile; measure again",
            build.name
        )));
    }
    fill(recording, &counts, handlers, lines).map_err(damaged)
}

/// What the driver costs an operation of the job's load, if that was counted without it.
fn cost(plan: &BootPlan, step: &Step, with: &Counts) -> Result<Vec<DriverCost>, String> {
    let job = plan.work.get(step.job).filter(|job| job.cost);
    let (Some(job), Some(files)) = (job, &plan.counting) else {
        return Ok(Vec::new());
    };
    let without = counts::parse(&read(&files.without(step.job))?)?;
    let (operations, with_ns) = operation(with, &job.run)?;
    let (_, without_ns) =
        operation(&without, &job.run).map_err(|why| format!("without the driver {why}"))?;
    let cost = |load: &BuiltinKind| DriverCost {
        load: *load,
        operations,
        meter: Meter::Exact,
        without_ns,
        with_ns,
    };
    Ok(job.run.loads.iter().map(cost).collect())
}

/// The operations of a run, and instructions of one.
fn operation(counts: &Counts, run: &RunSpec) -> Result<(u64, f64), String> {
    // Each is bounded, and their sum is not: it must not wrap to what is wanted.
    let mut times = counts.operations.iter().map(|(_, times)| *times);
    let operations = times.try_fold(0, u64::checked_add);
    let operations = operations.ok_or("more than 2^64 - 1 operations were counted")?;
    if let Length::Operations(wanted) = run.length
        && operations != wanted * u64::from(run.workers)
    {
        return Err(format!("{operations} operations were counted of {wanted}"));
    }
    match stats::mean_of_middle(&counts.operations) {
        Some(mean) if mean > 0.0 => Ok((operations, mean)),
        _ => Err("no system call was counted in the load's operations: has the kernel a function do_syscall_64?".to_owned()),
    }
}

/// The text of counts.
fn read(path: &Path) -> Result<String, String> {
    let bytes = left::read(path, counts::MAX_BYTES).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// Makes `recording` the recording of what was counted, with the source lines that `lines` knows.
///
/// # Errors
/// If what was counted contradicts itself.
pub fn fill(
    recording: &mut Recording,
    counts: &Counts,
    handlers: Vec<CountedHandler>,
    lines: &Lines,
) -> Result<(), String> {
    recording.meter = Meter::Exact;
    recording.histogram = LAYOUT;
    let by_address: HashMap<u64, &Calls> =
        counts.calls.iter().map(|(id, calls)| (counts.functions[id].address, calls)).collect();
    for handler in handlers {
        let calls = by_address.get(&handler.address).copied();
        recording.handlers.push(of_handler(handler, calls)?);
    }
    recording.call_tree = Some(tree(counts, lines));
    recording.warnings.clear();
    recording.warn();
    recording.check().map_err(|error| error.to_string())
}

/// What is stored where there is no call: a histogram of this layout takes megabytes, and a driver has many functions
/// that one load does not call.
fn none() -> Result<Distribution, String> {
    static NONE: OnceLock<Result<Distribution, String>> = OnceLock::new();
    let made = || LAYOUT.empty_distribution().map_err(|error| error.to_string());
    NONE.get_or_init(made).clone()
}

/// Instructions of calls, as they are stored.
struct Stored {
    count: u64,
    sum: u64,
    min: Option<u64>,
    max: Option<u64>,
    over_range: u64,
    stored: Distribution,
}

thread_local! {
    /// A histogram of this layout takes 12 MiB, and to make one takes longer than all else here.
    static SCRATCH: RefCell<Option<Durations>> = const { RefCell::new(None) };
}

/// What is stored of calls by their instructions.
fn measured(values: &[(u64, u64)]) -> Result<Stored, String> {
    if values.is_empty() {
        let stored = none()?;
        return Ok(Stored { count: 0, sum: 0, min: None, max: None, over_range: 0, stored });
    }
    SCRATCH.with_borrow_mut(|scratch| {
        let durations = match scratch {
            Some(durations) => durations,
            None => scratch.insert(Durations::new(LAYOUT.empty()?)),
        };
        durations.reset();
        for (instructions, times) in values {
            durations.record_many(*instructions, *times, LAYOUT.highest_ns);
        }
        Ok(Stored {
            count: durations.len(),
            sum: durations.sum_ns(),
            min: durations.min_ns(),
            max: durations.max_ns(),
            over_range: durations.over_range(),
            stored: Distribution::encode(durations.histogram())
                .map_err(|error| error.to_string())?,
        })
    })
}

fn of_handler(handler: CountedHandler, calls: Option<&Calls>) -> Result<HandlerRecording, String> {
    let never = Calls::default();
    let calls = calls.unwrap_or(&never);
    let inclusive = measured(&calls.inclusive)?;
    let own = measured(&calls.own)?;
    Ok(HandlerRecording {
        name: handler.name,
        module: handler.module,
        by_glob: handler.by_glob,
        backend: None,
        count: inclusive.count,
        sum_ns: inclusive.sum,
        min_ns: inclusive.min,
        max_ns: inclusive.max,
        self_time: Some(SelfTimeRecording {
            sum_ns: own.sum,
            min_ns: own.min,
            max_ns: own.max,
            probes_ns: 0,
            histogram: own.stored,
        }),
        losses: Losses {
            entries: calls.entered,
            exits: calls.ended,
            in_flight: calls.entered.saturating_sub(calls.ended).saturating_sub(calls.abandoned),
            lost: calls.abandoned,
            over_range: inclusive.over_range,
            ..Losses::default()
        },
        histogram: inclusive.stored,
    })
}

/// The functions of the tree; by id of `counts` the place of each among them, and its number among those of its name.
fn functions(counts: &Counts) -> (Vec<TreeFunction>, HashMap<u32, (u32, usize)>) {
    let mut functions = Vec::new();
    // Symbols of one name are told apart by their order, as in the file.
    let mut order: Vec<(&u32, &counts::Function)> = counts.functions.iter().collect();
    order.sort_unstable_by_key(|(_, function)| function.address);
    let mut of_name: HashMap<(&str, Option<&str>), usize> = HashMap::new();
    let mut index_of: HashMap<u32, (u32, usize)> = HashMap::new();
    for (id, function) in order {
        let name = (function.name.as_str(), function.module.as_deref());
        let earlier = of_name.entry(name).or_default();
        index_of.insert(*id, (functions.len() as u32, *earlier));
        *earlier += 1;
        functions
            .push(TreeFunction { name: function.name.clone(), module: function.module.clone() });
    }
    (functions, index_of)
}

/// The tree, without addresses.
fn tree(counts: &Counts, lines: &Lines) -> CallTree {
    let (functions, index_of) = functions(counts);
    let mut tree = CallTree { functions, ..CallTree::default() };
    tree.nodes = counts
        .nodes
        .iter()
        .map(|node| {
            let [calls, own, loads, stores, iterations] = node.sums;
            let function = index_of[&node.function].0;
            TreeNode {
                parent: node.parent,
                function,
                calls,
                own,
                loads,
                stores,
                iterations,
                lines: Vec::new(),
            }
        })
        .collect();
    let mut starts: Vec<(u64, u32)> =
        counts.functions.iter().map(|(id, function)| (function.address, *id)).collect();
    starts.sort_unstable();
    let mut places: HashMap<TreePlace, u32> = HashMap::new();
    let mut of_nodes: HashMap<u32, BTreeMap<u32, u64>> = HashMap::new();
    for code in &counts.code {
        let mut address = code.address;
        for size in &code.sizes {
            let after = starts.partition_point(|(start, _)| *start <= address);
            if let Some((start, id)) = after.checked_sub(1).map(|at| starts[at]) {
                let function = &counts.functions[&id];
                let place = lines.place(&function.name, index_of[&id].1, address - start);
                let next = places.len() as u32;
                let place = *places.entry(place).or_insert(next);
                let sum = of_nodes.entry(code.node).or_default().entry(place).or_default();
                *sum = sum.saturating_add(code.times);
            }
            address = address.wrapping_add(u64::from(*size));
        }
    }
    for (node, lines) in of_nodes {
        tree.nodes[node as usize].lines = lines.into_iter().collect();
    }
    let mut places: Vec<(TreePlace, u32)> = places.into_iter().collect();
    places.sort_unstable_by_key(|(_, index)| *index);
    tree.places = places.into_iter().map(|(place, _)| place).collect();
    tree
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Clock;

    #[test]
    fn operations_that_were_not_counted_are_no_operations_that_cost_nothing() {
        let run = RunSpec {
            clock: Clock::Virtual,
            meter: Meter::Exact,
            handlers: Vec::new(),
            loads: vec![BuiltinKind::Connect],
            workers: 1,
            rate: None,
            length: Length::Operations(5),
        };
        let of = |lines: &str| {
            operation(&counts::parse(&format!("profiler-qemu 1\n{lines}end\n")).unwrap(), &run)
        };
        assert_eq!(of("operation 9 4\noperation 12 1\n"), Ok((5, 9.0)));
        assert_eq!(of("operation 9 4\n").unwrap_err(), "4 operations were counted of 5");
        assert_eq!(of("").unwrap_err(), "0 operations were counted of 5");
        // 2^16 times 2^48, and five.
        let most: String =
            (0..1 << 16).map(|at| format!("operation {at} {}\n", 1_u64 << 48)).collect();
        let wrapped = of(&format!("{most}operation 70000 5\n"));
        assert!(wrapped.unwrap_err().contains("more than 2^64 - 1"));
        assert!(of("operation 0 5\n").unwrap_err().contains("do_syscall_64"));
    }

    #[test]
    fn counts_that_are_missing_or_no_text_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let counts = folder.path().join("counts-1");
        assert!(read(&counts).unwrap_err().contains("No such file"));
        std::fs::write(&counts, [0xff]).unwrap();
        assert!(read(&counts).unwrap_err().contains("utf-8"));
    }
}
