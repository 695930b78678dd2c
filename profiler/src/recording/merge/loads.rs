//! Sums of loads: different loads stay apart, outcomes of equal loads add up.

use super::{checked, checked_calls};
use crate::recording::loads::{
    CpuTime, Latency, LoadOutcome, LoadRun, LoadStatus, OperationErrors, OperationTimes, TestRuns,
};
use crate::stop::StopReason;

/// Adds the loads of one source: the second of a kind to the second of that kind.
pub(super) fn add(sum: &mut Vec<LoadRun>, more: Vec<LoadRun>) -> Result<(), String> {
    let mut taken = vec![false; sum.len()];
    for load in more {
        let mut known = sum.iter_mut().zip(&mut taken);
        let free = known.find(|(known, taken)| !**taken && known.spec == load.spec);
        if let Some((known, taken)) = free {
            *taken = true;
            add_outcome(&mut known.outcome, load.outcome)?;
        } else {
            sum.push(load);
            taken.push(true);
        }
    }
    Ok(())
}

/// Sorts them so that the order does not depend on which source came first.
pub(super) fn sort(loads: &mut [LoadRun]) {
    loads.sort_by_cached_key(|load| serde_json::to_string(&load.spec).unwrap_or_default());
}

/// The sum has latencies that all its sources have.
fn add_latency(sum: Option<Latency>, more: Option<Latency>) -> Result<Option<Latency>, String> {
    let (Some(sum), Some(more)) = (sum, more) else { return Ok(None) };
    let response = sum.response.zip(more.response);
    let response = response.map(|(sum, more)| add_times(sum, more)).transpose()?;
    Ok(Some(Latency { service: add_times(sum.service, more.service)?, response }))
}

fn add_times(mut sum: OperationTimes, more: OperationTimes) -> Result<OperationTimes, String> {
    // Taken apart by name, so that a new field cannot be forgotten here.
    let OperationTimes { count, sum_ns, min_ns, max_ns, over_range, histogram } = more;
    sum.count = checked_calls(sum.count, count, "the number of operations")?;
    sum.sum_ns = checked(sum.sum_ns, sum_ns, "the time of a load's operations")?;
    sum.min_ns = sum.min_ns.into_iter().chain(min_ns).min();
    sum.max_ns = sum.max_ns.max(max_ns);
    sum.over_range = checked(sum.over_range, over_range, "the number of operations")?;
    sum.histogram.add(histogram.buckets);
    Ok(sum)
}

fn add_outcome(sum: &mut LoadOutcome, more: LoadOutcome) -> Result<(), String> {
    // Taken apart by name, so that a new field cannot be forgotten here.
    let LoadOutcome {
        status,
        operations,
        errors,
        elapsed_ns,
        held_rate_per_s: _,
        max_late_ns,
        latency,
        tests,
        cpu,
        left,
    } = more;
    sum.left = sum.left.take().max(left);
    sum.cpu = match (sum.cpu, cpu) {
        (Some(sum), Some(more)) => Some(CpuTime {
            user_ns: checked(sum.user_ns, more.user_ns, "CPU time")?,
            system_ns: checked(sum.system_ns, more.system_ns, "CPU time")?,
        }),
        _ => None,
    };
    if rank(&status) > rank(&sum.status) {
        sum.status = status;
    }
    let operations = sum.operations.zip(operations);
    sum.operations =
        operations.map(|(a, b)| checked(a, b, "the number of operations")).transpose()?;
    for error in errors {
        add_error(&mut sum.errors, error)?;
    }
    sum.errors.sort_by(|a, b| a.kind.cmp(&b.kind));
    for test in tests {
        add_test(&mut sum.tests, test)?;
    }
    sum.elapsed_ns = checked(sum.elapsed_ns, elapsed_ns, "the time of a load")?;
    // A rate of several runs depends on how they are weighed: each source has its own.
    sum.held_rate_per_s = None;
    sum.max_late_ns = sum.max_late_ns.max(max_late_ns);
    sum.latency = add_latency(sum.latency.take(), latency)?;
    Ok(())
}

/// Loads whose lists differ are kept apart, so that the order is that of the list.
fn add_test(sum: &mut Vec<TestRuns>, more: TestRuns) -> Result<(), String> {
    match sum.iter_mut().find(|known| known.name == more.name) {
        Some(known) => {
            let added = known.clone().checked_add(more);
            *known = added.ok_or_else(|| "the number of a test's runs".to_owned())?;
        }
        None => sum.push(more),
    }
    Ok(())
}

fn add_error(sum: &mut Vec<OperationErrors>, more: OperationErrors) -> Result<(), String> {
    match sum.iter_mut().find(|known| known.kind == more.kind) {
        Some(known) => {
            known.count = checked(known.count, more.count, "the number of errors")?;
            // Which came first is not known across sources: one of them stands for all.
            if more.first < known.first {
                known.first = more.first;
            }
        }
        None => sum.push(more),
    }
    Ok(())
}

/// The worst end is that of the sum; the text makes the order one.
fn rank(status: &LoadStatus) -> (u8, String) {
    match status {
        LoadStatus::Completed => (0, String::new()),
        LoadStatus::Stopped { by: StopReason::Duration } => (1, String::new()),
        LoadStatus::Stopped { by: StopReason::Interrupted } => (2, String::new()),
        LoadStatus::Stopped { by: StopReason::LoadFailed } => (3, String::new()),
        LoadStatus::Failed(failure) => (4, failure.to_string()),
    }
}
