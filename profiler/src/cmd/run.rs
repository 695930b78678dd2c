//! `profiler run`: probes on, load, probes off, report.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use profiler_common::bucket::{HIGHEST_NS, LOWEST_NS};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep_until;

use super::report;
use crate::cli::RunArgs;
use crate::error::{Failure, exit};
use crate::export::{Exporter as _, Json};
use crate::load::{
    BuiltinLoad, CommandLoad, IdleLoad, Load, LoadRun, LoadStatus, StopReason, StopSignal, run_all,
};
use crate::probe::{
    Drained, Precision, ProbeError, Session,
    bpf::{BpfSession, Options},
    recorder::Recorder,
};
use crate::profile::{
    Backend, HandlerProfile, HistogramLayout, Interval, IntervalStats, OutputFile, Profile, SCHEMA,
    Tool, VERSION,
};
use crate::progress::Progress;
use crate::target::{KernelFiles, ResolveError, Target};
use crate::warning::WarningRecord;
use crate::{host, module, privileges};

/// Window of a load that does not end by itself, where no other was asked for.
const DEFAULT_DURATION: Duration = Duration::from_secs(10);

/// Longest time between two drains: kernel counters have 32 bits, which no CPU fills so soon.
const DRAIN_EVERY: Duration = Duration::from_secs(10);

/// How often [`settle`] tries with the probes on.
const SETTLE_ATTEMPTS: u32 = 5;

/// How often a bar on a terminal moves.
const TICK: Duration = Duration::from_millis(250);

/// Runs one profile: see the [command line](RunArgs).
///
/// # Errors
/// With the exit code of the [table](exit). Codes 5, 6, 130 and 143 come after the report.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    privileges::check()?;
    let precision = Precision::from(args.precision);
    let targets = KernelFiles::default().resolve(args.module.as_deref(), &args.handlers)?;
    let mut modules = Vec::new();
    if let Some(name) = targets.first().and_then(|target| target.module.as_deref()) {
        modules.push(module::collect(name)?);
    }
    let host = host::collect();
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let mut progress = Progress::new(args.quiet);

    let attaching = Instant::now();
    let options = Options { precision, allow_shared: args.allow_shared, empty: false };
    let mut session = attach(&targets, options)?;
    progress.say(&format!(
        "probes on {} handler{} attached in {:.2} s; their histograms take {:.1} MiB of kernel memory",
        targets.len(),
        if targets.len() == 1 { "" } else { "s" },
        attaching.elapsed().as_secs_f64(),
        session.memory_bytes() as f64 / f64::from(1 << 20),
    ));

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| internal(&format!("cannot start the async runtime: {error}")))?;
    let window = runtime.block_on(measure(args, precision, &mut session, &mut progress))?;
    progress.end();

    // Before the probes come off: afterwards nothing tells that somebody else had been there.
    let foreign = session.foreign_program()?;
    let mut recorder = window.recorder;
    settle(&mut session, &mut recorder)?;

    let mut handlers = Vec::with_capacity(targets.len());
    for measure in recorder.finish() {
        let handler = HandlerProfile::from_measure(&measure, Backend::Fentry)
            .map_err(|error| internal(&error.to_string()))?;
        handlers.push(handler);
    }
    let mut profile = Profile {
        schema: SCHEMA.to_owned(),
        version: VERSION,
        tool: Tool::this(),
        started: window.started,
        clock: args.clock.into(),
        window_ns: nanoseconds(window.length),
        warmup_ns: nanoseconds(window.warmup),
        interrupted: window.signal.is_some(),
        histogram: HistogramLayout {
            precision_digits: precision.digits(),
            lowest_ns: LOWEST_NS,
            highest_ns: HIGHEST_NS,
            kernel_memory_bytes: session.memory_bytes(),
        },
        host,
        modules,
        loads: window.loads,
        handlers,
        intervals: window.intervals,
        warnings: Vec::new(),
    };
    if let Some((handler, prog_id)) = foreign {
        profile.warnings.push(WarningRecord {
            code: "shared".to_owned(),
            text: format!(
                "another tracing program (id {prog_id}) was on {handler} during the run: its time is \
                 counted as the handler's, and calls under way when it came or went were not \
                 measured; measure again without it"
            ),
            handlers: vec![handler],
        });
    }
    profile.warn();
    let delivered = deliver(args, &profile, json);
    if targets.len() > 20 {
        progress.say("taking the probes off");
    }
    drop(session);
    delivered?;
    verdict(&profile, window.signal)
}

/// Drains until the books balance. Taking probes off takes the kernel long (a grace period each), so
/// the report does not wait for it, unless other processes keep the handlers too busy for a moment
/// in which no call began or ended.
fn settle(session: &mut BpfSession, recorder: &mut Recorder) -> Result<(), Failure> {
    for attempt in 0..=SETTLE_ATTEMPTS {
        if attempt == SETTLE_ATTEMPTS {
            session.detach();
        }
        let drained = session.drain()?;
        recorder.add(&drained).map_err(|error| internal(&error.to_string()))?;
        if recorder.is_balanced() {
            break;
        }
    }
    Ok(())
}

/// Attaches, and finds out why where the kernel said only that it will not.
fn attach(targets: &[Target], options: Options) -> Result<BpfSession, Failure> {
    BpfSession::attach(targets, options).map_err(|error| {
        let refused = match &error {
            ProbeError::Handler { handler, .. } | ProbeError::Refused { handler, .. } => {
                targets.iter().find(|target| target.name == *handler)
            }
            _ => None,
        };
        match refused {
            Some(Target { name, module, .. })
                if !KernelFiles::default().is_traceable(module.as_deref(), name) =>
            {
                ResolveError::NotTraceable { handler: name.clone(), module: module.clone() }.into()
            }
            _ => error.into(),
        }
    })
}

/// What happened between the first and the last drain.
struct Window {
    recorder: Recorder,
    started: jiff::Timestamp,
    length: Duration,
    warmup: Duration,
    loads: Vec<LoadRun>,
    intervals: Vec<Interval>,
    /// The signal that ended it, if one did: its exit code and name.
    signal: Option<(u8, &'static str)>,
}

fn loads(args: &RunArgs) -> Vec<Box<dyn Load>> {
    if let [program, rest @ ..] = args.load.as_slice() {
        let rest: Vec<OsString> = rest.to_vec();
        return vec![Box::new(CommandLoad::new(program.clone(), rest))];
    }
    if args.builtin.is_empty() {
        return vec![Box::new(IdleLoad)];
    }
    let make = |kind: &_| -> Box<dyn Load> {
        Box::new(
            BuiltinLoad::new(*kind)
                .workers(args.workers)
                .rate(args.rate)
                .operations(args.operations)
                .directory(args.load_dir.clone()),
        )
    };
    args.builtin.iter().map(make).collect()
}

/// Runs warm-up and window. When this returns no load is running any more.
async fn measure(
    args: &RunArgs,
    precision: Precision,
    session: &mut BpfSession,
    progress: &mut Progress,
) -> Result<Window, Failure> {
    let mut recorder =
        Recorder::new(session, precision).map_err(|error| internal(&error.to_string()))?;
    let ends_by_itself = !args.load.is_empty() || args.operations.is_some();
    let duration = args.duration.or((!ends_by_itself).then_some(DEFAULT_DURATION));
    let mut signals = Signals::new()?;

    // Exits of calls that had entered before the probes were there.
    recorder.begin(&session.drain()?);
    let stop = StopSignal::new();
    let load_began = Instant::now();
    let mut window_began = load_began;
    let mut started = jiff::Timestamp::now();
    let mut running = tokio::spawn({
        let stop = stop.clone();
        let loads = loads(args);
        async move { run_all(loads, &stop).await }
    });
    let mut ended: Option<Vec<LoadRun>> = None;
    let mut caught = None;

    if !args.warmup.is_zero() {
        progress.say(&format!("warming up for {}", seconds(args.warmup)));
        progress.begin("warming up", Some(args.warmup));
        match wait(load_began + args.warmup, &mut running, &mut signals, progress, load_began).await
        {
            Wake::Time => {}
            Wake::Load(result) => ended = Some(result?),
            Wake::Signal(signal) => caught = Some(signal),
        }
        let drained = session.drain()?;
        if ended.is_none() && caught.is_none() {
            recorder.begin(&drained);
            window_began = Instant::now();
            started = jiff::Timestamp::now();
        } else {
            // The load did not outlast the warm-up: what there is, is of the warm-up.
            recorder.add(&drained).map_err(|error| internal(&error.to_string()))?;
        }
    }
    let warmup = window_began - load_began;

    match duration {
        Some(duration) => progress.say(&format!("measuring for {}", seconds(duration))),
        None => progress.say("measuring until the load has ended"),
    }
    progress.begin("measuring", duration);
    let end = duration.map(|duration| window_began + duration);
    let mut intervals = Vec::new();
    let mut interval = Open::new(session.targets().len(), precision, window_began)?;
    let mut next_drain = window_began + DRAIN_EVERY;
    let mut next_interval = args.interval.map(|interval| window_began + interval);
    while ended.is_none() && caught.is_none() {
        let until = [end, next_interval, Some(next_drain)].into_iter().flatten().min();
        let until = until.unwrap_or(next_drain);
        match wait(until, &mut running, &mut signals, progress, window_began).await {
            Wake::Time if end.is_some_and(|end| Instant::now() >= end) => break,
            Wake::Time => {}
            Wake::Load(result) => {
                ended = Some(result?);
                break;
            }
            Wake::Signal(signal) => {
                caught = Some(signal);
                break;
            }
        }
        let drained = session.drain()?;
        recorder.add(&drained).map_err(|error| internal(&error.to_string()))?;
        interval.add(&drained)?;
        let now = Instant::now();
        next_drain = now + DRAIN_EVERY;
        if let (Some(due), Some(every)) = (next_interval, args.interval)
            && now >= due
        {
            progress.say(&interval.line(window_began, now, &session.targets()));
            intervals.push(interval.close(window_began, now));
            next_interval = Some(due.max(now - every) + every);
        }
    }

    let loads = match ended {
        Some(loads) => loads,
        None => {
            stop.stop(if caught.is_some() {
                StopReason::Interrupted
            } else {
                StopReason::Duration
            });
            tokio::select! {
                result = &mut running => result.map_err(load_broke)?,
                (code, name) = signals.next() => {
                    // A second signal: the user will not wait for the load. Dropping it ends it.
                    running.abort();
                    let _ = running.await;
                    return Err(Failure::new(code, format!(
                        "a second {name} while the load was being stopped: nothing was saved"
                    )));
                }
            }
        }
    };
    let now = Instant::now();
    let drained = session.drain()?;
    recorder.add(&drained).map_err(|error| internal(&error.to_string()))?;
    if args.interval.is_some() {
        interval.add(&drained)?;
        intervals.push(interval.close(window_began, now));
    }
    let length = now - window_began;
    Ok(Window { recorder, started, length, warmup, loads, intervals, signal: caught })
}

enum Wake {
    Time,
    Load(Result<Vec<LoadRun>, Failure>),
    Signal((u8, &'static str)),
}

/// Waits for a time, the end of the load or a signal, and moves the bar meanwhile.
async fn wait(
    until: Instant,
    running: &mut tokio::task::JoinHandle<Vec<LoadRun>>,
    signals: &mut Signals,
    progress: &Progress,
    since: Instant,
) -> Wake {
    loop {
        let now = Instant::now();
        progress.at(now - since);
        if now >= until {
            return Wake::Time;
        }
        tokio::select! {
            () = sleep_until(until.min(now + TICK).into()) => {}
            result = &mut *running => return Wake::Load(result.map_err(load_broke)),
            signal = signals.next() => return Wake::Signal(signal),
        }
    }
}

/// The signals that end a run early.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| internal(&format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> (u8, &'static str) {
        tokio::select! {
            _ = self.interrupt.recv() => (exit::INTERRUPTED, "SIGINT"),
            _ = self.terminate.recv() => (exit::TERMINATED, "SIGTERM"),
        }
    }
}

/// The interval that is being measured.
struct Open {
    began: Instant,
    handlers: Vec<OfInterval>,
    lost: u64,
}

/// One handler in it.
#[derive(Clone)]
struct OfInterval {
    histogram: Histogram<u64>,
    sum_ns: u64,
    max_ns: Option<u64>,
}

impl OfInterval {
    /// Never above the longest call, though its bucket may reach further.
    fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        self.max_ns.map(|max| self.histogram.value_at_quantile(quantile).min(max))
    }
}

impl Open {
    fn new(handlers: usize, precision: Precision, began: Instant) -> Result<Self, Failure> {
        let empty = precision.histogram().map_err(|error| internal(&error.to_string()))?;
        let empty = OfInterval { histogram: empty, sum_ns: 0, max_ns: None };
        Ok(Self { began, handlers: vec![empty; handlers], lost: 0 })
    }

    fn add(&mut self, drained: &[Drained]) -> Result<(), Failure> {
        self.lost = 0;
        for (handler, drained) in self.handlers.iter_mut().zip(drained) {
            let added = handler.histogram.add(&drained.histogram);
            added.map_err(|error| internal(&error.to_string()))?;
            handler.sum_ns += drained.sum_ns;
            handler.max_ns = handler.max_ns.max(drained.max_ns);
            self.lost +=
                drained.books.lost + drained.books.missed.max(drained.books.unpaired_exits);
        }
        Ok(())
    }

    /// One line on the interval: calls, their rate, the handler with the highest TP99, losses.
    fn line(&self, window_began: Instant, now: Instant, targets: &[&Target]) -> String {
        let calls: u64 = self.handlers.iter().map(|handler| handler.histogram.len()).sum();
        let idle = self.handlers.iter().filter(|handler| handler.histogram.is_empty()).count();
        let length = (now - self.began).as_secs_f64().max(1e-9);
        let slowest = self
            .handlers
            .iter()
            .zip(targets)
            .filter_map(|(handler, target)| Some((handler.quantile_ns(0.99)?, &target.name)))
            .max();
        let mut line = format!(
            "[{:8.1} s] {calls} calls, {:.0} calls/s, lost {} so far",
            (now - window_began).as_secs_f64(),
            calls as f64 / length,
            self.lost,
        );
        if let Some((tp99, name)) = slowest {
            line.push_str(&format!(", highest TP99 {:.3} us ({name})", tp99 as f64 / 1e3));
        }
        if idle > 0 {
            line.push_str(&format!(", {idle} handlers without a hit"));
        }
        line
    }

    fn close(&mut self, window_began: Instant, now: Instant) -> Interval {
        let statistics = |handler: &OfInterval| IntervalStats {
            count: handler.histogram.len(),
            sum_ns: handler.sum_ns,
            p50_ns: handler.quantile_ns(0.5),
            p99_ns: handler.quantile_ns(0.99),
            max_ns: handler.max_ns,
        };
        let interval = Interval {
            start_ns: nanoseconds(self.began - window_began),
            duration_ns: nanoseconds(now - self.began),
            handlers: self.handlers.iter().map(statistics).collect(),
        };
        for handler in &mut self.handlers {
            handler.histogram.reset();
            handler.sum_ns = 0;
            handler.max_ns = None;
        }
        self.began = now;
        interval
    }
}

/// Prints the table and writes the file; both are tried, whatever becomes of the other.
fn deliver(args: &RunArgs, profile: &Profile, json: Option<OutputFile>) -> Result<(), Failure> {
    let to_stdout = json.as_ref().is_some_and(OutputFile::is_stdout);
    let written = json.map_or(Ok(()), |file| file.commit(&Json.serialize(profile)));
    let printed = if to_stdout {
        // Standard output is the JSON; the table goes where people read.
        report::print(profile, args.unit, None, &mut std::io::stderr().lock())
    } else {
        report::print(profile, args.unit, report::stdout_width(), &mut std::io::stdout().lock())
    };
    written?;
    printed.map_err(|error| Failure::from(report::ReportError::Write(error)))
}

/// The exit code after a report.
fn verdict(profile: &Profile, signal: Option<(u8, &'static str)>) -> Result<(), Failure> {
    if let Some((code, name)) = signal {
        return Err(Failure::new(
            code,
            format!("ended by {name}; the report covers the time until then"),
        ));
    }
    for run in &profile.loads {
        if let LoadStatus::Failed(failure) = &run.outcome.status {
            return Err(Failure::new(
                exit::LOAD_FAILED,
                format!("{failure}; the report covers what was measured"),
            ));
        }
    }
    if profile.handlers.iter().all(|handler| handler.count == 0) {
        return Err(Failure::new(
            exit::NO_HITS,
            "no handler had a single hit: the warnings above say why that may be",
        ));
    }
    Ok(())
}

fn internal(what: &str) -> Failure {
    Failure::new(exit::INTERNAL, what)
}

fn load_broke(error: tokio::task::JoinError) -> Failure {
    internal(&format!("the load broke off: {error}"))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
