//! The worker threads of a built-in load: set-up, schedule, counts.

use std::fs::File;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeSpec, TimeValLike as _};
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use nix::unistd::Pid;

use profiler_base::emulator;
use profiler_base::stats::{mean, nanoseconds};
use profiler_base::stop::{StopReason, StopSignal};
use profiler_recording::loads::{
    CpuTime, Latency, LoadFailure, LoadOutcome, LoadStatus, OperationTimes,
};

use super::tally::Tally;
use super::worker::{Doing as _, OperationErrors, Step, Worker, refused};
use super::{BuiltinLoad, make};

/// After this many failures in a row a worker gives up: it generates no load, and each failure may be slow
/// or flood a log.
const MAX_FAILURES_IN_A_ROW: u32 = 100;

/// Runs the load to its end and cleans up.
pub(super) fn run(load: &BuiltinLoad, stop: &StopSignal) -> LoadOutcome {
    let set_up = Instant::now();
    run_workers(load, stop).unwrap_or_else(|error| {
        let text = format!("built-in `{}`: {}", load.kind, error.first);
        let status = LoadStatus::Failed(LoadFailure::CouldNotStart { text });
        LoadOutcome { operations: Some(0), ..LoadOutcome::ended(status, set_up) }
    })
}

/// # Errors
/// If the load could not start.
fn run_workers(load: &BuiltinLoad, stop: &StopSignal) -> Result<LoadOutcome, OperationErrors> {
    let (folder, remover) = make::folder(load)?;
    let files = (0..load.dimensions.descriptors).map(|_| File::open("/dev/null"));
    let files: Vec<_> = files.collect::<Result<_, _>>().doing("open /dev/null")?;
    let (start, tallies, cpu) = start_workers(load, &folder, stop)?;
    // The directory is removed before the outcome is reported.
    drop((remover, files));
    let mut sum = Tally::new(load);
    tallies.into_iter().for_each(|tally| sum.add(tally));
    // Without the clean-up, which takes time of its own.
    let elapsed = sum.last.map_or(Duration::ZERO, |last| last.duration_since(start));
    Ok(LoadOutcome {
        operations: Some(sum.operations),
        errors: sum.errors.into_values().collect(),
        elapsed_ns: nanoseconds(elapsed),
        held_rate_per_s: mean(sum.operations, nanoseconds(elapsed)).map(|per_ns| per_ns * 1e9),
        max_late_ns: load.rate.map(|_| nanoseconds(sum.max_late)),
        latency: load.is_timed().then(|| Latency {
            service: OperationTimes::of(&sum.service),
            response: sum.response.as_ref().map(OperationTimes::of),
        }),
        cpu,
        ..LoadOutcome::ended(sum.status, start)
    })
}

/// Starts the workers together once all are set up, and waits for their end. With one that cannot be set
/// up none starts. Returns their common start, what each did, and the CPU time.
fn start_workers(
    load: &BuiltinLoad,
    folder: &Path,
    stop: &StopSignal,
) -> Result<(Instant, Vec<Tally>, Option<CpuTime>), OperationErrors> {
    // Set once all are set up: the time of their start, if they are to.
    let gate = OnceLock::new();
    thread::scope(|scope| {
        let (ready, answers) = mpsc::channel();
        let mut threads = Vec::new();
        for index in 0..load.workers {
            let (gate, of_worker) = (&gate, ready.clone());
            let tally = Tally::new(load);
            let name = format!("load-{}-{index}", load.kind);
            let body = move || work(load, folder, index, tally, stop, of_worker, gate);
            match thread::Builder::new().name(name).spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    let text = format!("thread {} of {}: {error}", index + 1, load.workers);
                    let _ = ready.send(Err(refused(text)));
                    break;
                }
            }
        }
        drop(ready);
        let set_up: Result<(), OperationErrors> = answers.iter().collect();
        let cpu_before = cpu_time();
        let start = Instant::now();
        gate.get_or_init(|| set_up.is_ok().then_some(start));
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        let tallies = joined.map(|end| end.unwrap_or_else(|panic| resume_unwind(panic))).collect();
        let cpu = cpu_before.zip(cpu_time()).map(|(before, after)| CpuTime {
            user_ns: after.user_ns.saturating_sub(before.user_ns),
            system_ns: after.system_ns.saturating_sub(before.system_ns),
        });
        set_up.map(|()| (start, tallies, cpu))
    })
}

/// CPU time of this process and of its children that have ended and been waited for.
fn cpu_time() -> Option<CpuTime> {
    let own = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let children = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    let times =
        [own.user_time() + children.user_time(), own.system_time() + children.system_time()];
    let [user_ns, system_ns] = times.map(|time| u64::try_from(time.num_nanoseconds()).unwrap_or(0));
    Some(CpuTime { user_ns, system_ns })
}

/// What one worker thread does.
fn work(
    load: &BuiltinLoad,
    folder: &Path,
    index: u32,
    mut tally: Tally,
    stop: &StopSignal,
    ready: mpsc::Sender<Result<(), OperationErrors>>,
    gate: &OnceLock<Option<Instant>>,
) -> Tally {
    let pinned = if load.pin { pin(index).doing("pin a worker to a CPU") } else { Ok(()) };
    let made = pinned.and_then(|()| make::worker(load, folder, index));
    // `start_workers` waits until all are dropped.
    let _ = ready.send(made.as_ref().map(drop).map_err(Clone::clone));
    drop(ready);
    if let (Ok(mut worker), Some(start)) = (made, *gate.wait()) {
        if load.rate.is_some() {
            // By default the kernel may wake us 50 us late. A refusal is no error.
            let _ = nix::sys::prctl::set_timerslack(1);
        }
        if !load.is_timed() {
            align();
        }
        tally.status = repeat(load, &mut worker, index, start, stop, &mut tally);
        emulator::end_operations();
        tally.last = Some(Instant::now());
    }
    tally
}

/// Sleeps until the clock is at a tenth of a second. In an otherwise idle guest under virtual time, the same timer interrupts then
/// hit the same operations in each run.
fn align() {
    /// In nanoseconds: a multiple of the kernel's timer period.
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
    worker: &mut Worker,
    index: u32,
    start: Instant,
    stop: &StopSignal,
    tally: &mut Tally,
) -> LoadStatus {
    let mut failures = 0;
    let mut next = u64::from(index);
    while load.operations.is_none_or(|operations| next < operations) {
        if load.rate.is_none() && stop.is_stopped() {
            return stopped(stop);
        }
        emulator::begin_operation();
        let mut result = worker(Step::Prepare);
        let mut due = None;
        if let Some(rate) = load.rate {
            // A time beyond the range of the clock never comes.
            let at = start.checked_add(rate.due(next));
            let at = at.unwrap_or_else(|| start + Duration::from_secs(1 << 32));
            if !stop.sleep_until(at) {
                return stopped(stop);
            }
            tally.max_late = tally.max_late.max(at.elapsed());
            due = Some(at);
        }
        if result.is_ok() {
            let started = load.is_timed().then(Instant::now);
            result = worker(Step::Operate);
            if let (Ok(()), Some(started)) = (&result, started) {
                tally.record(due, started, Instant::now());
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
                    load.kind, error.first
                );
                tally.add_errors(error);
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

fn stopped(stop: &StopSignal) -> LoadStatus {
    LoadStatus::Stopped { by: stop.reason().unwrap_or(StopReason::Interrupted) }
}

/// Pins the calling thread to one of the CPUs that it may use.
fn pin(index: u32) -> nix::Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this)?;
    let mut cpus = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).cycle();
    let mut one = CpuSet::new();
    one.set(cpus.nth(index as usize).ok_or(Errno::ENODEV)?)?;
    sched_setaffinity(this, &one)
}
