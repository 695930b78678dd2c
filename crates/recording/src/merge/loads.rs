//! Sums of loads: different loads stay apart, outcomes of equal loads add up.

use super::{both, by_name, checked, checked_calls};
use crate::loads::{CpuTime, Latency, LoadOutcome, LoadRun, OperationErrors, OperationTimes};

const OPERATIONS: &str = "the number of operations";

/// Adds the loads of one source: the second of a kind to the second of that kind.
pub(super) fn add(mut sum: Vec<LoadRun>, more: Vec<LoadRun>) -> Result<Vec<LoadRun>, String> {
    let mut taken = vec![false; sum.len()];
    for load in more {
        let mut known = sum.iter_mut().zip(&mut taken);
        let free = known.find(|(known, taken)| !**taken && known.spec == load.spec);
        if let Some((known, taken)) = free {
            *taken = true;
            known.outcome = add_outcome(std::mem::take(&mut known.outcome), load.outcome)?;
        } else {
            sum.push(load);
            taken.push(true);
        }
    }
    Ok(sum)
}

/// Sorts them so that the order does not depend on which source came first.
pub(super) fn sort(loads: &mut [LoadRun]) {
    loads.sort_by_cached_key(|load| serde_json::to_string(&load.spec).unwrap_or_default());
}

fn add_latency(sum: Latency, more: Latency) -> Result<Latency, String> {
    let response = sum.response.zip(more.response);
    let response = response.map(|(sum, more)| add_times(sum, more)).transpose()?;
    Ok(Latency { service: add_times(sum.service, more.service)?, response })
}

fn add_times(sum: OperationTimes, more: OperationTimes) -> Result<OperationTimes, String> {
    let mut histogram = sum.histogram;
    histogram.add(more.histogram.buckets);
    Ok(OperationTimes {
        count: checked_calls(sum.count, more.count, OPERATIONS)?,
        sum_ns: checked(sum.sum_ns, more.sum_ns, "the time of a load's operations")?,
        min_ns: sum.min_ns.into_iter().chain(more.min_ns).min(),
        max_ns: sum.max_ns.max(more.max_ns),
        over_range: checked(sum.over_range, more.over_range, OPERATIONS)?,
        histogram,
    })
}

fn add_cpu(sum: CpuTime, more: CpuTime) -> Result<CpuTime, String> {
    Ok(CpuTime {
        user_ns: checked(sum.user_ns, more.user_ns, "CPU time")?,
        system_ns: checked(sum.system_ns, more.system_ns, "CPU time")?,
    })
}

/// What only one of them knows, such as its CPU time or latency, the sum does not know.
fn add_outcome(sum: LoadOutcome, more: LoadOutcome) -> Result<LoadOutcome, String> {
    let mut errors = by_name(sum.errors, more.errors, |it| &it.kind, add_errors)?;
    errors.sort_by(|a, b| a.kind.cmp(&b.kind));
    let (cpu, latency) = (sum.cpu.zip(more.cpu), sum.latency.zip(more.latency));
    Ok(LoadOutcome {
        // The worst.
        status: sum.status.max(more.status),
        operations: both(sum.operations, more.operations, OPERATIONS)?,
        errors,
        elapsed_ns: checked(sum.elapsed_ns, more.elapsed_ns, "the time of a load")?,
        // A rate of several runs depends on how they are weighed: each source has its own.
        held_rate_per_s: None,
        max_late_ns: sum.max_late_ns.max(more.max_late_ns),
        latency: latency.map(|(sum, more)| add_latency(sum, more)).transpose()?,
        // Loads whose lists differ are kept apart, so that the order is that of the list.
        tests: by_name(
            sum.tests,
            more.tests,
            |it| &it.name,
            |sum, more| {
                sum.checked_add(more).ok_or_else(|| "the number of a test's runs".to_owned())
            },
        )?,
        cpu: cpu.map(|(sum, more)| add_cpu(sum, more)).transpose()?,
        left: sum.left.max(more.left),
    })
}

fn add_errors(sum: OperationErrors, more: OperationErrors) -> Result<OperationErrors, String> {
    Ok(OperationErrors {
        count: checked(sum.count, more.count, "the number of errors")?,
        // Which came first is not known across sources: one of them stands for all.
        first: sum.first.min(more.first),
        kind: sum.kind,
    })
}
