//! Makes recordings of a guest's answers and what the emulator counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use profiler_base::stats;
use profiler_kernel::host::HostFacts;
use profiler_kernel::module::ModuleFacts;
use profiler_kernel::names::module as module_of_line;
use profiler_load::LoadRun;
use profiler_recording::call_tree::{TreeFunction, TreeNode, TreePlace};
use profiler_recording::measure::Losses;
use profiler_recording::{
    CallTree, Clock, Distribution, DriverCost, HandlerRecording, HistogramLayout, Meter,
    OperationPercentile, Percentile, Recording,
};

use super::counts::{self, Calls, Counts};
use super::lines::Lines;
use super::plan::{CountedHandler, RunSpec};
use super::symbols::Symbols;

/// Upper end of the histogram, in instructions of a call; sums, minimum and maximum are exact above it, too.
const HIGHEST: u64 = 1 << 28;

/// Up to 262,143 instructions each number has a bucket of its own.
const LAYOUT: HistogramLayout = HistogramLayout {
    precision_digits: 5,
    lowest_ns: 1,
    highest_ns: HIGHEST,
    kernel_memory_bytes: 0,
    direct: None,
};

/// The names of a run's loads.
pub(super) fn load_name(run: &RunSpec) -> String {
    run.loads.iter().map(|kind| kind.name()).collect::<Vec<_>>().join("+")
}

/// A recording without handlers.
pub(super) fn recording(host: &HostFacts, module: &ModuleFacts, loads: Vec<LoadRun>) -> Recording {
    let length = loads.iter().map(|load| load.outcome.elapsed_ns).max().unwrap_or(0);
    Recording {
        window_ns: length.max(1),
        host: host.clone(),
        modules: vec![module.clone()],
        loads,
        ..Recording::new(jiff::Timestamp::now(), Clock::Virtual, Meter::Exact, LAYOUT)
    }
}

/// The plugin's line for the module: its name, where it was loaded and its bytes, to know its code where symbols are missing.
/// `text` has the lines of `/proc/modules`.
pub(super) fn module_line(module: &str, text: &str) -> String {
    let mut modules = text.lines().filter_map(module_of_line);
    match modules.find(|(name, ..)| *name == module) {
        Some((name, address, bytes)) => format!("module {name} {address:x} {bytes}\n"),
        None => format!("module {module}\n"),
    }
}

/// Adds the functions of a module without symbols that ran, where all were asked for: the plugin names them by their distance
/// from its first byte.
pub(super) fn add_unnamed(
    handlers: &mut Vec<CountedHandler>,
    counts: &Counts,
    module: &str,
    patterns: &[String],
) {
    let patterns: Vec<glob::Pattern> =
        patterns.iter().filter_map(|pattern| glob::Pattern::new(pattern).ok()).collect();
    let functions = counts.calls.keys().filter_map(|id| counts.functions.get(id));
    let wanted = functions.filter(|function| {
        function.module.as_deref() == Some(module)
            && patterns.iter().any(|pattern| pattern.matches(&function.name))
            && !handlers.iter().any(|known| known.address == function.address)
    });
    let mut found = Vec::from_iter(wanted.map(|function| CountedHandler {
        name: function.name.clone(),
        module: function.module.clone(),
        by_glob: true,
        address: function.address,
    }));
    found.sort_by_key(|handler| handler.address);
    handlers.extend(found);
}

/// Keeps only the handlers that are wanted or registered as hooks, including all of the same name.
pub(super) fn keep_wanted(
    handlers: &mut Vec<CountedHandler>,
    wanted: &BTreeSet<String>,
    module: &ModuleFacts,
) {
    let hooks = module.hooks.iter().flat_map(|hooks| &hooks.list);
    let registered = hooks.flat_map(|hook| &hook.handlers);
    let kept: BTreeSet<&str> = wanted.iter().chain(registered).map(String::as_str).collect();
    handlers.retain(|handler| kept.contains(plain(&handler.name)));
}

/// A handler's name without the number that tells it from others of its name.
pub(super) fn plain(name: &str) -> &str {
    name.split('#').next().unwrap_or(name)
}

/// What the driver costs an operation of each load of a run; `without_ns` are the instructions of one without it.
///
/// # Errors
/// As [`operation`].
pub(super) fn costs(
    counts: &Counts,
    run: &RunSpec,
    without_ns: f64,
) -> Result<Vec<DriverCost>, String> {
    let (operations, with_ns) = operation(counts, run)?;
    let within = stats::mean_of_counts(&counts.within);
    let [repeated, elsewhere] = counts.of_operations.map(|sum| stats::mean(sum, operations));
    let costs = run.loads.iter().map(|load| DriverCost {
        load: *load,
        operations,
        without_ns,
        with_ns,
        repeated,
        elsewhere,
        within,
        tail: tail(&counts.operations, &counts.within, operations),
    });
    Ok(costs.collect())
}

/// Percentiles of the instructions of operations, and of those within the driver's functions; both ascend.
fn tail(whole: &[(u64, u64)], within: &[(u64, u64)], operations: u64) -> Vec<OperationPercentile> {
    if operations < stats::for_an_exact_gate(0.99) {
        return Vec::new();
    }
    let few = (operations / 200).max(1);
    let percentiles = (90..=99).filter_map(|percent| {
        let rank = stats::nearest_rank(operations, f64::from(percent) / 100.0)?;
        let (whole, within) = (around(whole, rank, few)?, around(within, rank, few)?);
        Some(OperationPercentile { percent, whole, within })
    });
    percentiles.collect()
}

/// What is at a rank, and `few` ranks before it and behind.
fn around(values: &[(u64, u64)], rank: u64, few: u64) -> Option<Percentile> {
    Some(Percentile {
        instructions: stats::at_rank(values.iter().copied(), rank)?,
        before: stats::at_rank(values.iter().copied(), rank - few)?,
        behind: stats::at_rank(values.iter().copied(), rank + few)?,
    })
}

/// The operations of a run, and instructions of one.
pub(super) fn operation(counts: &Counts, run: &RunSpec) -> Result<(u64, f64), String> {
    let operations = counts::sum(&counts.operations);
    if let Some(wanted) = run.length.operations()
        && operations != wanted * u64::from(run.workers)
    {
        return Err(format!("{operations} operations were counted of {wanted}"));
    }
    match stats::mean_of_counts(&counts.operations) {
        Some(mean) if mean > 0.0 => Ok((operations, mean)),
        _ => Err("no system call was counted in the load's operations: has the kernel symbols __entry_text_start and __entry_text_end, or a function do_el0_svc on arm64?".to_owned()),
    }
}

/// Makes `recording` the recording of what was counted, with source lines: those of a driver from `lines`, those of BPF programs from
/// `symbols`.
///
/// # Errors
/// If what was counted contradicts itself.
pub fn fill(
    recording: &mut Recording,
    counts: &Counts,
    handlers: Vec<CountedHandler>,
    lines: &Lines,
    symbols: &Symbols,
) -> Result<(), String> {
    recording.meter = Meter::Exact;
    recording.histogram = LAYOUT;
    let by_address: HashMap<u64, &Calls> =
        counts.calls.iter().map(|(id, calls)| (counts.functions[id].address, calls)).collect();
    for handler in handlers {
        let calls = by_address.get(&handler.address).copied();
        recording.handlers.push(of_handler(handler, calls));
    }
    recording.call_tree = Some(tree(counts, lines, symbols));
    recording.warnings.clear();
    recording.warn();
    recording.check()
}

/// What is stored of a handler by the instructions of its calls.
fn measured(values: &[(u64, u64)]) -> HandlerRecording {
    let instructions = values.iter().filter(|(_, times)| *times > 0).map(|(it, _)| *it);
    let over: Vec<(u64, u64)> = values.iter().copied().filter(|(it, _)| *it > HIGHEST).collect();
    HandlerRecording {
        count: counts::sum(values),
        sum_ns: total(values),
        min_ns: instructions.clone().min(),
        max_ns: instructions.max(),
        losses: Losses { over_range: counts::sum(&over), ..Losses::default() },
        histogram: Distribution::of_durations(values, &LAYOUT),
        ..HandlerRecording::default()
    }
}

/// The instructions of all calls.
fn total(values: &[(u64, u64)]) -> u64 {
    let each = values.iter().map(|(instructions, times)| instructions.saturating_mul(*times));
    each.fold(0, u64::saturating_add)
}

fn of_handler(handler: CountedHandler, calls: Option<&Calls>) -> HandlerRecording {
    let never = Calls::default();
    let calls = calls.unwrap_or(&never);
    let inclusive = measured(&calls.inclusive);
    HandlerRecording {
        name: handler.name,
        module: handler.module,
        by_glob: handler.by_glob,
        own_instructions: Some(total(&calls.own)),
        repeated: Some(calls.iterations),
        ordering: Some(calls.ordering),
        losses: Losses {
            entries: calls.entered,
            exits: calls.ended,
            in_flight: calls.entered.saturating_sub(calls.ended).saturating_sub(calls.abandoned),
            lost: calls.abandoned,
            ..inclusive.losses
        },
        ..inclusive
    }
}

/// The functions of the tree, and by id of `counts` the place of each among them.
fn functions(counts: &Counts, symbols: &Symbols) -> (Vec<TreeFunction>, HashMap<u32, u32>) {
    let mut order: Vec<(&u32, &counts::Function)> = counts.functions.iter().collect();
    order.sort_unstable_by_key(|(_, function)| function.address);
    let index_of = order.iter().zip(0..).map(|((id, _), index)| (**id, index)).collect();
    let functions = order.into_iter().map(|(_, function)| TreeFunction {
        name: symbols.name_at(function.address).unwrap_or_else(|| function.name.clone()),
        module: function.module.clone(),
    });
    (functions.collect(), index_of)
}

/// The symbol that an instruction of a function lies in, which may be a part of the function that the compiler has put elsewhere: its
/// name, its number among those of that name, and how far in it the instruction is.
fn symbol_of<'a>(
    symbols: &'a Symbols,
    function: &counts::Function,
    address: u64,
) -> (&'a str, usize, u64) {
    match symbols.at(address).filter(|it| Some(&it.module) == function.module.as_ref()) {
        Some(symbol) => (&symbol.name, symbol.number, address - symbol.address),
        // A driver without symbols.
        None => ("", 0, address.wrapping_sub(function.address)),
    }
}

/// The tree, without addresses.
fn tree(counts: &Counts, lines: &Lines, symbols: &Symbols) -> CallTree {
    let (functions, index_of) = functions(counts, symbols);
    let mut places: HashMap<TreePlace, u32> = HashMap::new();
    let mut of_nodes = vec![BTreeMap::<u32, u64>::new(); counts.nodes.len()];
    for code in &counts.code {
        let function = &counts.functions[&counts.nodes[code.node as usize].function];
        let mut address = code.address;
        for size in &code.sizes {
            let (name, number, offset) = symbol_of(symbols, function, address);
            let of_program = symbols.bpf_lines.place(address, offset);
            let place = of_program.unwrap_or_else(|| lines.place(name, number, offset));
            let next = places.len() as u32;
            let place = *places.entry(place).or_insert(next);
            let sum = of_nodes[code.node as usize].entry(place).or_default();
            *sum = sum.saturating_add(code.times);
            address = address.wrapping_add(u64::from(*size));
        }
    }
    let nodes = counts.nodes.iter().zip(of_nodes).map(|(node, lines)| {
        let [calls, own, iterations] = node.sums;
        let (parent, function) = (node.parent, index_of[&node.function]);
        TreeNode { parent, function, calls, own, iterations, lines: lines.into_iter().collect() }
    });
    let nodes = nodes.collect();
    let mut places: Vec<(TreePlace, u32)> = places.into_iter().collect();
    places.sort_unstable_by_key(|(_, index)| *index);
    let places = places.into_iter().map(|(place, _)| place).collect();
    CallTree { functions, places, nodes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_load::BuiltinKind;

    /// By the symbols of the driver, whether those before it have run or not.
    #[test]
    fn an_instruction_lies_in_the_symbol_that_it_has_in_the_file() {
        let text = "ffffffffc0000010 t twin\t[d]\nffffffffc0000030 t twin\t[d]\n\
            ffffffffc0000050 t hook\t[d]\nffffffffc0000090 t hook.cold\t[d]\n";
        let symbols = Symbols::parse(text);
        let of = |name: &str, module: &str, at: u64, offset: u64| {
            let address = 0xffff_ffff_c000_0000 + at;
            let module = Some(module.to_owned());
            let function = counts::Function { address, name: name.to_owned(), module };
            symbol_of(&symbols, &function, address + offset)
        };
        assert_eq!(of("twin", "d", 0x30, 5), ("twin", 1, 5), "the second of that name");
        assert_eq!(of("twin", "d", 0x10, 5), ("twin", 0, 5));
        assert_eq!(of("hook", "d", 0x50, 0x44), ("hook.cold", 0, 4), "put apart");
        assert_eq!(of("other", "e", 0x50, 6), ("", 0, 6), "a module without symbols");
    }

    #[test]
    fn a_tail_says_what_a_few_operations_make() {
        let of = |values: &[(u64, u64)], percent: u8| {
            let all = tail(values, values, values.iter().map(|(_, times)| times).sum());
            let found = all.iter().find(|it| it.percent == percent);
            found.map(|it| (it.whole.instructions, [it.whole.before, it.whole.behind]))
        };
        assert_eq!(of(&[(5, 199)], 99), None);
        assert_eq!(of(&[(5, 200)], 99), Some((5, [5; 2])));
        assert_eq!(of(&[(5, 993), (9, 7)], 99), Some((5, [5, 9])), "7 of 1,000");
        assert_eq!(of(&[(5, 986), (9, 14)], 99), Some((9, [5, 9])), "14");
        assert_eq!(of(&[(5, 980), (9, 20)], 99), Some((9, [9, 9])), "2 %");
        assert_eq!(of(&[(5, 940), (9, 20), (30, 40)], 95), Some((9, [9; 2])));
    }

    #[test]
    fn operations_that_were_not_counted_are_no_operations_that_cost_nothing() {
        let run = RunSpec::counted(vec![BuiltinKind::Connect], 5);
        // All of it in the driver's functions.
        let counts = |operations: &[(u64, u64)]| Counts {
            operations: operations.to_vec(),
            within: operations.to_vec(),
            of_operations: [40, 15],
            ..Counts::default()
        };
        let of = |operations: &[(u64, u64)]| operation(&counts(operations), &run);
        assert_eq!(of(&[(9, 4), (12, 1)]), Ok((5, 9.6)));
        assert_eq!(of(&[(9, 4)]).unwrap_err(), "4 operations were counted of 5");
        assert_eq!(of(&[]).unwrap_err(), "0 operations were counted of 5");
        let five = costs(&counts(&[(9, 5)]), &run, 4.0).unwrap().remove(0);
        assert_eq!((five.added_ns(), five.repeated, five.elsewhere), (5.0, Some(8.0), Some(3.0)));
        assert_eq!((five.within, five.tail.len()), (Some(9.0), 0));
        // 2^64 and five.
        let wrapped = of(&[(9, 1 << 63), (10, 1 << 63), (70_000, 5)]);
        assert!(wrapped.unwrap_err().starts_with(&format!("{} operations", u64::MAX)));
        assert!(of(&[(0, 5)]).unwrap_err().contains("__entry_text_start"));
    }

    #[test]
    fn handlers_of_one_name_are_wanted_together() {
        let hooks = serde_json::json!({
            "list": [{"kind": "kprobe", "place": "vfs_read", "handlers": ["hook"]}],
        });
        let hooks = Some(serde_json::from_value(hooks).unwrap());
        let module = ModuleFacts { hooks, ..ModuleFacts::default() };
        let handler = |name: &&str| CountedHandler {
            name: (*name).to_owned(),
            module: None,
            by_glob: true,
            address: 0,
        };
        let all = ["hook#1", "hook#2", "pre#1", "pre#2", "pre", "other"];
        let mut handlers: Vec<CountedHandler> = all.iter().map(handler).collect();
        keep_wanted(&mut handlers, &BTreeSet::from(["pre".to_owned()]), &module);
        let kept: Vec<&str> = handlers.iter().map(|it| &*it.name).collect();
        assert_eq!(kept, all[..5]);
    }
}
