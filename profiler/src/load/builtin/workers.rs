//! The worker threads of a built-in load: set-up, schedule, counts.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeSpec, TimeValLike as _};
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use nix::unistd::Pid;

use super::latency::LatencyRecorder;
use super::worker::{OperationError, Shared, Worker, unavailable};
use super::{BuiltinLoad, make};
use crate::emulator;
use crate::recording::loads::{
    CpuTime, LoadFailure, LoadOutcome, LoadStatus, OperationErrors, OwnCalls,
};
use crate::stats::nanoseconds;
use crate::stop::{StopReason, StopSignal};

/// After this many failures in a row a worker gives up: it makes no load, and each failure may be slow
/// or flood a log.
const MAX_FAILURES_IN_A_ROW: u32 = 100;

const PANICKED: &str = "a worker panicked; this is a bug of the profiler";

/// What one worker did, or all of them together.
struct Tally {
    operations: u64,
    latency: LatencyRecorder,
    /// By kind.
    errors: BTreeMap<String, OperationErrors>,
    calls: OwnCalls,
    /// The longest delay between the due time of an operation and its start.
    max_late: Duration,
    /// The end of the last operation, or of the wait for the next.
    last: Option<Instant>,
    status: LoadStatus,
}

/// The worker threads from their common start to their end.
struct Workers {
    start: Instant,
    /// Why the load could not start.
    set_up_error: Option<String>,
    tallies: Vec<thread::Result<Tally>>,
    cpu: Option<CpuTime>,
}

/// Runs the load to its end and cleans up. In a process that is `alone` with the load, the CPU time of the
/// process is the load's.
pub(super) fn run(load: &BuiltinLoad, stop: &StopSignal, alone: bool) -> LoadOutcome {
    let set_up = Instant::now();
    let mut calls = OwnCalls::default();
    run_workers(load, stop, alone, &mut calls).unwrap_or_else(|text| {
        let text = format!("built-in `{}`: {text}", load.kind);
        let status = LoadStatus::Failed(LoadFailure::CouldNotStart { text });
        let outcome = LoadOutcome::ended(status, set_up);
        LoadOutcome { operations: Some(0), calls: Some(calls), ..outcome }
    })
}

/// # Errors
/// If the load could not start; `calls` has the calls of its set-up.
fn run_workers(
    load: &BuiltinLoad,
    stop: &StopSignal,
    alone: bool,
    calls: &mut OwnCalls,
) -> Result<LoadOutcome, String> {
    let shared = make::shared(load, calls)?;
    let open = |_| File::open("/dev/null").map_err(unavailable("open /dev/null"));
    let descriptors = (0..load.dimensions.descriptors).map(open).collect::<Result<Vec<_>, _>>()?;
    let mut sum = Tally::new(LatencyRecorder::new(load.rate.is_some(), load.measured_from));
    let workers = start_workers(load, &shared, &sum.latency, stop, alone);
    // The directory is removed before the outcome is reported.
    drop((shared, descriptors));
    let mut bug = None;
    for tally in workers.tallies {
        match tally {
            Ok(tally) => sum.add(tally),
            Err(_) => bug = Some(PANICKED.to_owned()),
        }
    }
    let latency = load.is_timed().then(|| sum.latency.store());
    *calls += sum.calls;
    if let Some(text) = workers.set_up_error {
        return Err(text);
    }
    if let Some(text) = bug {
        sum.status = LoadStatus::Failed(LoadFailure::BrokeOff { text });
    }
    // Without the clean-up, which takes time of its own.
    let elapsed = sum.last.map_or(Duration::ZERO, |last| last.duration_since(workers.start));
    Ok(LoadOutcome {
        operations: Some(sum.operations),
        errors: sum.errors.into_values().collect(),
        elapsed_ns: nanoseconds(elapsed),
        held_rate_per_s: held_rate(sum.operations, elapsed),
        max_late_ns: load.rate.map(|_| nanoseconds(sum.max_late)),
        calls: Some(*calls),
        latency,
        cpu: workers.cpu,
        ..LoadOutcome::ended(sum.status, workers.start)
    })
}

/// Starts the workers together once all are set up, and waits for their end. With one that cannot be set
/// up none starts.
fn start_workers(
    load: &BuiltinLoad,
    shared: &Shared,
    latency: &LatencyRecorder,
    stop: &StopSignal,
    alone: bool,
) -> Workers {
    // Held until all are set up; then it has the time of their start.
    let gate = Mutex::new(None);
    thread::scope(|scope| {
        let mut started = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let (ready, answers) = mpsc::channel();
        let mut threads = Vec::new();
        let mut set_up_error = None;
        for index in 0..load.workers {
            let gate = &gate;
            let ready = ready.clone();
            let tally = Tally::new(latency.clone());
            let name = format!("load-{}-{index}", load.kind);
            let body = move || work(load, shared, index, tally, stop, ready, gate);
            match thread::Builder::new().name(name).spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    let text = format!("thread {} of {}: {error}", index + 1, load.workers);
                    set_up_error = Some(text);
                    break;
                }
            }
        }
        drop(ready);
        // Until each has answered or has panicked before that.
        let answers: Vec<Result<(), String>> = answers.iter().collect();
        let panicked = answers.len() < threads.len();
        let failed = answers.into_iter().find_map(Result::err);
        let failed = failed.or_else(|| panicked.then(|| PANICKED.to_owned()));
        let set_up_error = set_up_error.or(failed);
        let cpu_before = if alone { cpu_time() } else { None };
        let start = Instant::now();
        *started = set_up_error.is_none().then_some(start);
        drop(started);
        let tallies = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        let cpu = cpu_before.zip(cpu_time()).map(|(before, after)| CpuTime {
            user_ns: after.user_ns.saturating_sub(before.user_ns),
            system_ns: after.system_ns.saturating_sub(before.system_ns),
        });
        Workers { start, set_up_error, tallies, cpu }
    })
}

impl Tally {
    fn new(latency: LatencyRecorder) -> Self {
        Self {
            operations: 0,
            latency,
            errors: BTreeMap::new(),
            calls: OwnCalls::default(),
            max_late: Duration::ZERO,
            last: None,
            status: LoadStatus::Completed,
        }
    }

    fn add(&mut self, other: Self) {
        self.latency.add(&other.latency);
        self.operations += other.operations;
        self.calls += other.calls;
        self.max_late = self.max_late.max(other.max_late);
        self.last = self.last.max(other.last);
        other.errors.into_values().for_each(|errors| self.add_errors(errors));
        // The worst end is kept.
        if !matches!(
            (&self.status, &other.status),
            (LoadStatus::Failed(_), _) | (_, LoadStatus::Completed)
        ) {
            self.status = other.status;
        }
    }

    fn add_errors(&mut self, errors: OperationErrors) {
        match self.errors.get_mut(&errors.kind) {
            Some(known) => known.count += errors.count,
            None => drop(self.errors.insert(errors.kind.clone(), errors)),
        }
    }

    fn add_error(&mut self, OperationError { kind, text }: OperationError) {
        self.add_errors(OperationErrors { kind, count: 1, first: text });
    }
}

/// CPU time of this process and of its children that have ended and been waited for.
fn cpu_time() -> Option<CpuTime> {
    let own = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let children = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    let ns = |time: nix::sys::time::TimeVal| u64::try_from(time.num_nanoseconds()).unwrap_or(0);
    Some(CpuTime {
        user_ns: ns(own.user_time() + children.user_time()),
        system_ns: ns(own.system_time() + children.system_time()),
    })
}

fn held_rate(operations: u64, elapsed: Duration) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a rate is read to a few digits")]
    let operations = operations as f64;
    (!elapsed.is_zero()).then(|| operations / elapsed.as_secs_f64())
}

/// What one worker thread does.
fn work(
    load: &BuiltinLoad,
    shared: &Shared,
    index: u32,
    mut tally: Tally,
    stop: &StopSignal,
    ready: mpsc::Sender<Result<(), String>>,
    gate: &Mutex<Option<Instant>>,
) -> Tally {
    let pinned = if load.pin { pin(index) } else { Ok(()) };
    let made = pinned.and_then(|()| make::worker(load, shared, index, &mut tally.calls));
    let (mut worker, answer) = match made {
        Ok(worker) => (Some(worker), Ok(())),
        Err(text) => (None, Err(text)),
    };
    // `start_workers` waits until all are dropped.
    let _ = ready.send(answer);
    drop(ready);
    let start = *gate.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some(worker), Some(start)) = (worker.as_deref_mut(), start) {
        if load.rate.is_some() {
            // By default the kernel may wake us 50 us late. A refusal is no error.
            let _ = nix::sys::prctl::set_timerslack(1);
        }
        if !load.is_timed() {
            align();
        }
        tally.status = repeat(load, worker, index, start, stop, &mut tally);
        emulator::end_operations();
        tally.last = Some(Instant::now());
    }
    tally
}

/// Sleeps until the clock is at a tenth of a second. In a guest under virtual time, which has nothing else to do, the same timer
/// interrupts then come during the same operations, whatever was done before.
fn align() {
    /// Nanoseconds; the kernel's timer interrupts come at parts of it.
    const STEP: i64 = 100_000_000;
    let clock = ClockId::CLOCK_MONOTONIC;
    let Ok(now) = clock.now() else { return };
    let next = TimeSpec::nanoseconds((now.num_nanoseconds() / STEP + 1) * STEP);
    let _ = clock_nanosleep(clock, ClockNanosleepFlags::TIMER_ABSTIME, &next);
}

/// Worker `n % workers` makes operation `n` of the load: each has an even share of the operations and of
/// the schedule, without synchronisation between them.
fn repeat(
    load: &BuiltinLoad,
    worker: &mut dyn Worker,
    index: u32,
    start: Instant,
    stop: &StopSignal,
    tally: &mut Tally,
) -> LoadStatus {
    let stopped = || LoadStatus::Stopped { by: stop.reason().unwrap_or(StopReason::Interrupted) };
    let mut failures = 0;
    let mut next = u64::from(index);
    while load.operations.is_none_or(|operations| next < operations) {
        if load.rate.is_none() && stop.is_stopped() {
            return stopped();
        }
        emulator::begin_operation();
        let mut result = worker.prepare(&mut tally.calls);
        let mut due = None;
        if let Some(rate) = load.rate {
            // A time beyond the range of the clock never comes.
            let at = start.checked_add(rate.due(next));
            let at = at.unwrap_or_else(|| start + Duration::from_secs(1 << 32));
            if !stop.sleep_until(at) {
                return stopped();
            }
            tally.max_late = tally.max_late.max(at.elapsed());
            due = Some(at);
        }
        if result.is_ok() {
            let started = load.is_timed().then(Instant::now);
            result = worker.operate(&mut tally.calls);
            if let (Ok(()), Some(started)) = (&result, started) {
                tally.latency.record(due, started, Instant::now());
            }
        }
        match result {
            Ok(()) => {
                tally.operations += 1;
                failures = 0;
            }
            Err(error) => {
                failures += 1;
                let text = format!(
                    "built-in `{}`: {failures} operations in a row failed, the last with: {}",
                    load.kind, error.text
                );
                tally.add_error(error);
                if failures == MAX_FAILURES_IN_A_ROW {
                    // With fewer workers it is not the load asked for: stop the others.
                    stop.stop(StopReason::LoadFailed);
                    return LoadStatus::Failed(LoadFailure::BrokeOff { text });
                }
            }
        }
        next = next.saturating_add(u64::from(load.workers));
    }
    LoadStatus::Completed
}

/// Pins the calling thread to one of the CPUs that it may use.
fn pin(index: u32) -> Result<(), String> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).map_err(unavailable("pin a worker to a CPU"))?;
    let cpus: Vec<usize> =
        (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).collect();
    let cpu = cpus.get(index as usize % cpus.len().max(1)).ok_or("there is no CPU to pin to")?;
    let mut one = CpuSet::new();
    one.set(*cpu)
        .and_then(|()| sched_setaffinity(this, &one))
        .map_err(unavailable("pin a worker to a CPU"))
}
