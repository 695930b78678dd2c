//! From what the emulator counted to a recording.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use super::counts::{self, Calls, Counts};
use super::lines::Lines;
use super::plan::{CountedHandler, Plan, Step};
use crate::error::{Failure, exit};
use crate::profile::call_tree::{TreeFunction, TreeNode, TreePlace};
use crate::profile::measure::Losses;
use crate::profile::{
    CallTree, Distribution, HandlerProfile, HistogramLayout, Meter, Profile, SelfTimeProfile,
};
use crate::stats::Durations;

/// Up to 262,143 instructions each number has a bucket of its own.
const DIGITS: u8 = 5;

/// Most instructions of a call that are told apart; sums, minimum and maximum are exact above, too.
const HIGHEST: u64 = 1 << 28;

/// Largest file of counts that is read.
const MAX_BYTES: u64 = 1 << 30;

/// Adds to `profile`, which has the load and the machine, what was counted in `step`.
pub(super) fn add(profile: &mut Profile, plan: &Plan, step: &Step) -> Result<(), Failure> {
    let counts = read_counts(&step.counts)?;
    let handlers: Vec<CountedHandler> = fs::read(&step.handlers)
        .map_err(|error| error.to_string())
        .and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()))
        .map_err(|error| unreadable(&step.handlers, &error))?;
    let module = &plan.build(step.side).file;
    let lines = Lines::read(module).map_err(|error| unreadable(module, &error))?;
    profile.meter = Meter::Exact;
    profile.histogram = HistogramLayout {
        precision_digits: DIGITS,
        lowest_ns: 1,
        highest_ns: HIGHEST,
        kernel_memory_bytes: 0,
    };
    let by_address: HashMap<u64, &Calls> =
        counts.calls.iter().map(|(id, calls)| (counts.functions[id].address, calls)).collect();
    for handler in handlers {
        let calls = by_address.get(&handler.address).copied();
        profile.handlers.push(of_handler(handler, calls, &profile.histogram)?);
    }
    profile.call_tree = Some(tree(&counts, &lines));
    profile.warnings.clear();
    profile.warn();
    Ok(())
}

fn read_counts(path: &Path) -> Result<Counts, Failure> {
    let length = fs::metadata(path).map_err(|error| unreadable(path, &error.to_string()))?.len();
    if length > MAX_BYTES {
        return Err(unreadable(path, &"more than 1 GiB"));
    }
    let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    counts::parse(&text).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(exit::LAB_FAILED, format!("cannot read {}: {error}", path.display()))
}

fn of_handler(
    handler: CountedHandler,
    calls: Option<&Calls>,
    layout: &HistogramLayout,
) -> Result<HandlerProfile, Failure> {
    let internal = |error: &dyn std::fmt::Display| Failure::new(exit::INTERNAL, error.to_string());
    let none = Calls::default();
    let calls = calls.unwrap_or(&none);
    let measured = |values: &[(u64, u64)]| -> Result<(Durations, Distribution), Failure> {
        let mut durations = Durations::new(layout.empty().map_err(|error| internal(&error))?);
        for (instructions, times) in values {
            durations.record_many(*instructions, *times, layout.highest_ns);
        }
        let stored =
            Distribution::encode(durations.histogram()).map_err(|error| internal(&error))?;
        Ok((durations, stored))
    };
    let (inclusive, histogram) = measured(&calls.inclusive)?;
    let (own, own_histogram) = measured(&calls.own)?;
    Ok(HandlerProfile {
        name: handler.name,
        module: handler.module,
        by_glob: handler.by_glob,
        backend: None,
        count: inclusive.len(),
        sum_ns: inclusive.sum_ns(),
        min_ns: inclusive.min_ns(),
        max_ns: inclusive.max_ns(),
        self_time: Some(SelfTimeProfile {
            sum_ns: own.sum_ns(),
            min_ns: own.min_ns(),
            max_ns: own.max_ns(),
            probes_ns: 0,
            histogram: own_histogram,
        }),
        losses: Losses {
            entries: calls.entered,
            exits: calls.ended,
            in_flight: calls.entered.saturating_sub(calls.ended).saturating_sub(calls.abandoned),
            lost: calls.abandoned,
            over_range: inclusive.over_range(),
            ..Losses::default()
        },
        histogram,
    })
}

/// The tree, without addresses.
fn tree(counts: &Counts, lines: &Lines) -> CallTree {
    let mut tree = CallTree::default();
    // Symbols of one name are told apart by their order, as in the file.
    let mut order: Vec<(&u32, &counts::Function)> = counts.functions.iter().collect();
    order.sort_unstable_by_key(|(_, function)| function.address);
    let mut of_name: HashMap<(&str, Option<&str>), usize> = HashMap::new();
    let mut index_of: HashMap<u32, (u32, usize)> = HashMap::new();
    for (id, function) in order {
        let name = (function.name.as_str(), function.module.as_deref());
        let earlier = of_name.entry(name).or_default();
        index_of.insert(*id, (tree.functions.len() as u32, *earlier));
        *earlier += 1;
        tree.functions
            .push(TreeFunction { name: function.name.clone(), module: function.module.clone() });
    }
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
