//! Sums of loads: different loads stay apart, outcomes of equal loads add up.

use super::{both, by_key, least, plus};
use crate::loads::{CpuTime, Latency, LoadOutcome, LoadRun, OperationErrors, OperationTimes};

/// Adds the loads of one source: the second of a kind to the second of that kind.
pub(super) fn add(sum: &mut Vec<LoadRun>, more: Vec<LoadRun>) {
    let mut taken = vec![false; sum.len()];
    for load in more {
        let mut known = sum.iter_mut().zip(&mut taken);
        let free = known.find(|(known, taken)| !**taken && known.spec == load.spec);
        if let Some((known, taken)) = free {
            *taken = true;
            add_outcome(&mut known.outcome, load.outcome);
        } else {
            sum.push(load);
            taken.push(true);
        }
    }
}

/// Sorts them so that the order does not depend on which source came first.
pub(super) fn sort(loads: &mut [LoadRun]) {
    loads.sort_by_cached_key(|load| serde_json::to_string(&load.spec).unwrap_or_default());
}

/// What only one of them knows, such as its CPU time or latency, the sum does not know.
fn both_or_none<T>(sum: &mut Option<T>, more: Option<T>, add: fn(&mut T, T)) {
    match (sum.as_mut(), more) {
        (Some(sum), Some(more)) => add(sum, more),
        _ => *sum = None,
    }
}

fn add_outcome(sum: &mut LoadOutcome, more: LoadOutcome) {
    // The worst.
    sum.status = std::mem::take(&mut sum.status).max(more.status);
    sum.operations = both(sum.operations, more.operations);
    by_key(&mut sum.errors, more.errors, |a, b| a.kind == b.kind, add_errors);
    sum.errors.sort_by(|a, b| a.kind.cmp(&b.kind));
    plus(&mut sum.elapsed_ns, more.elapsed_ns);
    // A rate of several runs depends on how they are weighed: each source has its own.
    sum.held_rate_per_s = None;
    sum.max_late_ns = sum.max_late_ns.max(more.max_late_ns);
    both_or_none(&mut sum.latency, more.latency, add_latency);
    // Loads whose lists differ are kept apart, so that the order is that of the list.
    by_key(&mut sum.tests, more.tests, |a, b| a.name == b.name, |sum, more| *sum += more);
    both_or_none(&mut sum.cpu, more.cpu, add_cpu);
    sum.left = sum.left.take().max(more.left);
}

fn add_latency(sum: &mut Latency, more: Latency) {
    add_times(&mut sum.service, more.service);
    both_or_none(&mut sum.response, more.response, add_times);
}

fn add_times(sum: &mut OperationTimes, more: OperationTimes) {
    plus(&mut sum.count, more.count);
    plus(&mut sum.sum_ns, more.sum_ns);
    sum.min_ns = least(sum.min_ns, more.min_ns);
    sum.max_ns = sum.max_ns.max(more.max_ns);
    plus(&mut sum.over_range, more.over_range);
    sum.histogram.add(more.histogram.buckets);
}

fn add_cpu(sum: &mut CpuTime, more: CpuTime) {
    plus(&mut sum.user_ns, more.user_ns);
    plus(&mut sum.system_ns, more.system_ns);
}

fn add_errors(sum: &mut OperationErrors, more: OperationErrors) {
    plus(&mut sum.count, more.count);
    // Which came first is not known across sources: one of them stands for all.
    sum.first = std::mem::take(&mut sum.first).min(more.first);
}
