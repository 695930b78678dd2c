//! The workers of a built-in load: set-up, schedule, count.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::Pid;

use super::latency::Clockwork;
use super::{BuiltinLoad, OperationError, OwnCalls, Shared, Worker};
use crate::load::{
    CpuTime, LoadFailure, LoadOutcome, LoadStatus, OperationErrors, StopReason, StopSignal,
    nanoseconds,
};

/// A worker whose last so many operations all failed gives up: that is no load, and each
/// failure may be slow or flood a log.
const FAILURES_IN_A_ROW: u32 = 100;

/// What one worker did.
struct Count {
    operations: u64,
    latency: Clockwork,
    errors: BTreeMap<String, (u64, String)>,
    calls: OwnCalls,
    /// The longest that an operation started after it was due.
    max_late: Duration,
    /// The end of the last operation, or of the wait for the next.
    last: Option<Instant>,
    end: End,
}

/// Why a worker ended.
#[derive(Default)]
enum End {
    /// Its share of the operations is made.
    #[default]
    Done,
    Stopped,
    GaveUp(String),
}

/// Runs the load to its end and takes everything down again. In a process that is `alone` with it, the
/// CPU time of the process is the load's.
pub(super) fn run(load: &BuiltinLoad, stop: &StopSignal, alone: bool) -> LoadOutcome {
    let began = Instant::now();
    let mut calls = OwnCalls::default();
    let prepared = load.shared(&mut calls).and_then(|shared| {
        let latency = Clockwork::new(load.rate.is_some(), load.measured_from)?;
        Ok((shared, Count::new(latency)))
    });
    let (shared, mut whole) = match prepared {
        Ok(prepared) => prepared,
        Err(text) => return could_not_start(load, text, began, calls),
    };
    let empty = whole.latency.clone();
    let result = thread::scope(|scope| {
        // Every worker says that it is ready and waits for the common start: a slow set-up does not
        // give one a lead, and with one failed nothing starts.
        let (ready, answers) = mpsc::channel();
        let mut starts = Vec::new();
        let mut threads = Vec::new();
        let mut failure = None;
        for index in 0..load.workers {
            let (start, started) = mpsc::channel::<Instant>();
            let (ready, shared) = (ready.clone(), &shared);
            let count = Count::new(empty.clone());
            let name = format!("load-{}-{index}", load.kind);
            let body = move || work(load, shared, index, count, stop, &ready, &started);
            match thread::Builder::new().name(name).spawn_scoped(scope, body) {
                Ok(thread) => {
                    starts.push(start);
                    threads.push(thread);
                }
                Err(error) => {
                    failure = Some(format!("thread {} of {}: {error}", index + 1, load.workers));
                    break;
                }
            }
        }
        drop(ready);
        for answer in answers.iter().take(threads.len()) {
            if let Err(text) = answer {
                failure.get_or_insert(text);
            }
        }
        let cpu = if alone { cpu_time() } else { None };
        let start = Instant::now();
        if failure.is_none() {
            for waiting in &starts {
                // One that is gone has panicked, which its join tells.
                let _ = waiting.send(start);
            }
        }
        drop(starts);
        let counts: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        let cpu = cpu.zip(cpu_time()).map(|(before, after)| CpuTime {
            user_ns: after.user_ns.saturating_sub(before.user_ns),
            system_ns: after.system_ns.saturating_sub(before.system_ns),
        });
        (failure, start, counts, cpu)
    });
    let (failure, start, counts, cpu) = result;
    // The directory is gone before the outcome is told.
    drop(shared);

    let mut fault = None;
    for count in counts {
        match count.map(|count| whole.add(count)) {
            Ok(Ok(())) => {}
            Ok(Err(text)) => fault = Some(text),
            Err(_) => fault = Some("a worker panicked".to_owned()),
        }
    }
    let latency = whole.latency.store().map_err(|text| fault = Some(text)).ok();
    whole.calls += calls;
    if let Some(text) = failure {
        return could_not_start(load, text, began, whole.calls);
    }
    let status = match whole.end {
        _ if fault.is_some() => LoadStatus::Failed(LoadFailure::BrokeOff {
            text: format!("{}; this is a fault of the profiler", fault.unwrap_or_default()),
        }),
        End::GaveUp(text) => LoadStatus::Failed(LoadFailure::BrokeOff { text }),
        End::Stopped => {
            LoadStatus::Stopped { by: stop.reason().unwrap_or(StopReason::Interrupted) }
        }
        End::Done => LoadStatus::Completed,
    };
    // Without the taking down, which takes time of its own.
    let elapsed = whole.last.map_or(Duration::ZERO, |last| last.duration_since(start));
    let mut outcome = LoadOutcome::ended(status, start);
    outcome.elapsed_ns = nanoseconds(elapsed);
    outcome.operations = Some(whole.operations);
    outcome.held_rate_per_s = held_rate(whole.operations, elapsed);
    outcome.max_late_ns = load.rate.map(|_| nanoseconds(whole.max_late));
    outcome.calls = Some(whole.calls);
    outcome.latency = latency;
    outcome.cpu = cpu;
    let errors = whole.errors.into_iter();
    outcome.errors =
        errors.map(|(kind, (count, first))| OperationErrors { kind, count, first }).collect();
    outcome
}

impl Count {
    fn new(latency: Clockwork) -> Self {
        Self {
            operations: 0,
            latency,
            errors: BTreeMap::new(),
            calls: OwnCalls::default(),
            max_late: Duration::ZERO,
            last: None,
            end: End::Done,
        }
    }

    fn add(&mut self, other: Self) -> Result<(), String> {
        self.latency.add(&other.latency)?;
        self.operations += other.operations;
        self.calls += other.calls;
        self.max_late = self.max_late.max(other.max_late);
        self.last = self.last.max(other.last);
        for (kind, (count, first)) in other.errors {
            self.errors.entry(kind).or_insert((0, first)).0 += count;
        }
        // The worst end counts.
        match (&self.end, &other.end) {
            (End::GaveUp(_), _) | (_, End::Done) => {}
            (_, End::Stopped | End::GaveUp(_)) => self.end = other.end,
        }
        Ok(())
    }
}

fn could_not_start(
    load: &BuiltinLoad,
    text: String,
    began: Instant,
    calls: OwnCalls,
) -> LoadOutcome {
    let text = format!("built-in `{}`: {text}", load.kind);
    let status = LoadStatus::Failed(LoadFailure::CouldNotStart { text });
    let mut outcome = LoadOutcome::ended(status, began);
    outcome.operations = Some(0);
    outcome.calls = Some(calls);
    outcome
}

/// CPU time of this process and of its children that have ended and been waited for.
fn cpu_time() -> Option<CpuTime> {
    let ns = |time: nix::sys::time::TimeVal| {
        let us = i128::from(time.tv_sec()) * 1_000_000 + i128::from(time.tv_usec());
        u64::try_from(us * 1_000).unwrap_or(0)
    };
    let own = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let children = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    Some(CpuTime {
        user_ns: ns(own.user_time()) + ns(children.user_time()),
        system_ns: ns(own.system_time()) + ns(children.system_time()),
    })
}

fn held_rate(operations: u64, elapsed: Duration) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a rate is read to a few digits")]
    let operations = operations as f64;
    (!elapsed.is_zero()).then(|| operations / elapsed.as_secs_f64())
}

/// The whole life of one worker thread.
fn work(
    load: &BuiltinLoad,
    shared: &Shared,
    index: u32,
    mut count: Count,
    stop: &StopSignal,
    ready: &mpsc::Sender<Result<(), String>>,
    started: &mpsc::Receiver<Instant>,
) -> Count {
    let pinned = if load.pin { pin(index) } else { Ok(()) };
    let made = pinned.and_then(|()| load.worker(shared, index, &mut count.calls));
    let (mut worker, answer) = match made {
        Ok(worker) => (Some(worker), Ok(())),
        Err(text) => (None, Err(text)),
    };
    // The other side waits for as many answers as there are workers.
    let _ = ready.send(answer);
    if let (Some(worker), Ok(start)) = (worker.as_deref_mut(), started.recv()) {
        if load.rate.is_some() {
            // The default lets the kernel wake us 50 us late. Not being allowed to is no error.
            let _ = nix::sys::prctl::set_timerslack(1);
        }
        count.end = repeat(load, worker, index, start, stop, &mut count);
        count.last = Some(Instant::now());
    }
    count
}

/// Operation `n` of the load is worker `n % workers`'s: each has its even share of the operations and
/// of the schedule, with nothing to agree about while they run.
fn repeat(
    load: &BuiltinLoad,
    worker: &mut dyn Worker,
    index: u32,
    start: Instant,
    stop: &StopSignal,
    count: &mut Count,
) -> End {
    let mut failures = 0;
    let mut next = u64::from(index);
    while load.operations.is_none_or(|operations| next < operations) {
        if load.rate.is_none() && stop.is_stopped() {
            return End::Stopped;
        }
        let mut result = worker.prepare(&mut count.calls);
        let mut due = None;
        if let Some(rate) = load.rate {
            // Beyond the clock's range is never.
            let at = start.checked_add(rate.due(next));
            let at = at.unwrap_or_else(|| start + Duration::from_secs(1 << 32));
            if !stop.sleep_until(at) {
                return End::Stopped;
            }
            count.max_late = count.max_late.max(at.elapsed());
            due = Some(at);
        }
        if result.is_ok() {
            let began = Instant::now();
            result = worker.operate(&mut count.calls);
            if result.is_ok() {
                count.latency.record(due, began, Instant::now());
            }
        }
        match result {
            Ok(()) => {
                count.operations += 1;
                failures = 0;
            }
            Err(error) => {
                failures += 1;
                if failures == FAILURES_IN_A_ROW {
                    let text = format!(
                        "built-in `{}`: {failures} operations in a row failed, the last with: {}",
                        load.kind, error.text
                    );
                    count.fail(error);
                    // With one worker fewer it is not the load asked for: the others end too.
                    stop.stop(StopReason::LoadFailed);
                    return End::GaveUp(text);
                }
                count.fail(error);
            }
        }
        next = next.saturating_add(u64::from(load.workers));
    }
    End::Done
}

/// Keeps the calling thread on one of the CPUs that it may use.
fn pin(index: u32) -> Result<(), String> {
    let this = Pid::from_raw(0);
    let failed = |errno: nix::errno::Errno| format!("pin a worker to a CPU: {}", errno.desc());
    let allowed = sched_getaffinity(this).map_err(failed)?;
    let cpus: Vec<usize> =
        (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).collect();
    let cpu = cpus.get(index as usize % cpus.len().max(1)).ok_or("there is no CPU to pin to")?;
    let mut one = CpuSet::new();
    one.set(*cpu).and_then(|()| sched_setaffinity(this, &one)).map_err(failed)
}

impl Count {
    fn fail(&mut self, error: OperationError) {
        self.errors.entry(error.kind).or_insert((0, error.text)).0 += 1;
    }
}
