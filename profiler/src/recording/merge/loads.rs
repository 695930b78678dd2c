//! Sums of loads: what was asked for stays apart, what came of it is added up.

use super::super::EncodeError;
use super::durations::{Stored, Sum};
use super::{TooLarge, checked};
use crate::recording::HistogramLayout;
use crate::recording::loads::TestRuns;
use crate::recording::loads::{
    CpuTime, Latency, LoadOutcome, LoadRun, LoadSpec, LoadStatus, OperationErrors, OperationTimes,
    OwnCalls,
};
use crate::stop::StopReason;

/// The loads of all sources: the second of a kind is added to the second of that kind.
#[derive(Debug, Default)]
pub(super) struct Loads(Vec<Load>);

#[derive(Debug)]
struct Load {
    spec: LoadSpec,
    /// Without its latency, which is kept as it can be added to.
    outcome: LoadOutcome,
    service: Option<Times>,
    response: Option<Times>,
}

/// With how many are beyond the range.
type Times = (Sum, u64);

impl Loads {
    /// Adds those of one source.
    pub(super) fn add(&mut self, more: Vec<LoadRun>) -> Result<(), TooLarge> {
        let mut taken = vec![false; self.0.len()];
        for LoadRun { spec, mut outcome } in more {
            let latency = outcome.latency.take();
            let known = self.0.iter_mut().zip(&mut taken);
            let mut free = known.filter(|(known, taken)| !**taken && known.spec == spec);
            if let Some((known, taken)) = free.next() {
                *taken = true;
                add_outcome(&mut known.outcome, outcome)?;
                let (service, response) = parts(latency);
                add_times(&mut known.service, service)?;
                add_times(&mut known.response, response)?;
            } else {
                let (service, response) = parts(latency);
                let (service, response) = (begin(service)?, begin(response)?);
                self.0.push(Load { spec, outcome, service, response });
                taken.push(true);
            }
        }
        Ok(())
    }

    /// The sums, in the one order that does not tell which source came first.
    pub(super) fn finish(self) -> Result<Vec<LoadRun>, EncodeError> {
        let mut scratch = HistogramLayout::of_operations().empty().map_err(EncodeError)?;
        let mut stored = |(sum, over_range): Times| {
            let histogram = sum.encode(&mut scratch)?;
            let Sum { count, sum_ns, min_ns, max_ns, .. } = sum;
            let times = OperationTimes { count, sum_ns, min_ns, max_ns, over_range, histogram };
            Ok::<_, EncodeError>(times)
        };
        let mut loads = Vec::with_capacity(self.0.len());
        for Load { spec, mut outcome, service, response } in self.0 {
            if let Some(service) = service {
                let response = response.map(&mut stored).transpose()?;
                let service = stored(service)?;
                outcome.latency = Some(Latency { service, response });
            }
            loads.push(LoadRun { spec, outcome });
        }
        loads.sort_by_cached_key(|load| serde_json::to_string(&load.spec).unwrap_or_default());
        Ok(loads)
    }
}

fn parts(latency: Option<Latency>) -> (Option<OperationTimes>, Option<OperationTimes>) {
    latency.map_or((None, None), |latency| (Some(latency.service), latency.response))
}

fn begin(times: Option<OperationTimes>) -> Result<Option<Times>, TooLarge> {
    let Some(times) = times else { return Ok(None) };
    let mut sum = Times::default();
    add(&mut sum, &times)?;
    Ok(Some(sum))
}

/// Latencies that not all sources have are none of the sum.
fn add_times(sum: &mut Option<Times>, more: Option<OperationTimes>) -> Result<(), TooLarge> {
    match (sum.as_mut(), more) {
        (Some(sum), Some(more)) => add(sum, &more),
        _ => {
            *sum = None;
            Ok(())
        }
    }
}

fn add((sum, beyond): &mut Times, more: &OperationTimes) -> Result<(), TooLarge> {
    let OperationTimes { count, sum_ns, min_ns, max_ns, over_range, ref histogram } = *more;
    *beyond = checked(*beyond, over_range, "the number of operations")?;
    sum.add(&Stored { count, sum_ns, min_ns, max_ns, histogram }, "a load's operations")
}

fn add_outcome(sum: &mut LoadOutcome, more: LoadOutcome) -> Result<(), TooLarge> {
    // Taken apart by name, so that a new field cannot be forgotten here.
    let LoadOutcome {
        status,
        operations,
        errors,
        elapsed_ns,
        held_rate_per_s: _,
        max_late_ns,
        calls,
        latency: _,
        tests,
        cpu,
    } = more;
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
    sum.operations = match (sum.operations, operations) {
        (Some(a), Some(b)) => Some(checked(a, b, "the number of operations")?),
        _ => None,
    };
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
    sum.calls = match (sum.calls, calls) {
        (Some(a), Some(b)) => Some(
            add_calls(a, b).ok_or_else(|| TooLarge("the number of a load's calls".to_owned()))?,
        ),
        _ => None,
    };
    Ok(())
}

/// Loads whose lists differ are kept apart, so that the order is that of the list.
fn add_test(sum: &mut Vec<TestRuns>, more: TestRuns) -> Result<(), TooLarge> {
    match sum.iter_mut().find(|known| known.name == more.name) {
        Some(known) => {
            let added = known.clone().checked_add(more);
            *known = added.ok_or_else(|| TooLarge("the number of a test's runs".to_owned()))?;
        }
        None => sum.push(more),
    }
    Ok(())
}

fn add_error(sum: &mut Vec<OperationErrors>, more: OperationErrors) -> Result<(), TooLarge> {
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

/// All of a load's calls together; asked of the stored form, so that no kind can be forgotten.
fn total(calls: &OwnCalls) -> Option<u64> {
    let stored = serde_json::to_value(calls).ok()?;
    let counts = stored.as_object()?.values();
    counts.map(serde_json::Value::as_u64).try_fold(0_u64, |sum, count| sum.checked_add(count?))
}

/// The sum of each kind of call; `None` beyond 2^64 - 1.
fn add_calls(mut a: OwnCalls, b: OwnCalls) -> Option<OwnCalls> {
    // No field is more than the total, so none overflows where the total does not.
    total(&a)?.checked_add(total(&b)?)?;
    a += b;
    Some(a)
}
