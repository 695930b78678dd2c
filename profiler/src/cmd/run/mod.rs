//! `profiler run`: probes on, load, probes off, report.

mod assemble;
mod deliver;
mod interval;
mod jobs;
mod live;
mod repeat;
mod signals;
mod window;

use std::time::{Duration, Instant};

use super::exports::Exports;
use crate::cli::RunArgs;
use crate::error::{Failure, exit};
use crate::host::HostFacts;
use crate::load::HitCounter;
use crate::probe::{Options, Precision, ProbeError, Probes, Session as _, recorder::Recorder};
use crate::profile::{LoadProfileUsed, OutputFile, Profile, Series};
use crate::progress::Progress;
use crate::target::{KernelFiles, ResolveError, Target};
use crate::warning::WarningRecord;
use crate::{host, module, privileges};

use assemble::Common;
use deliver::Delivery;
use jobs::Job;
use repeat::Measured;
pub(super) use signals::Signals;
use window::Plan;

/// How often [`settle`] tries with the probes on.
const SETTLE_ATTEMPTS: u32 = 5;

/// Runs one profile, or the parts of a load profile in turn, as often as asked for: see the
/// [command line](RunArgs).
///
/// # Errors
/// With the exit code of the [table](exit). Codes 5, 6, 9, 130 and 143 come after the report.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    if !args.no_probe {
        privileges::check()?;
        super::put_back();
    }
    let jobs = jobs::of(args)?;
    // Several runs make a series, which has no form but JSON.
    let several = jobs.len() > 1 || args.repeat > 1;
    if several && !args.export.is_empty() {
        let text = "--export writes one run, and these are several: write --json, which `profiler report` \
                    makes other formats of";
        return Err(Failure::new(exit::USAGE, text));
    }
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let exports = Exports::open(&args.export, json.as_ref())?;
    let mut progress = Progress::new(args.quiet).drawn(!args.no_progress);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| internal(&format!("cannot start the async runtime: {error}")))?;
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let host = host::collect();
    let mut bench = Bench { args, host: &host, runtime: &runtime };
    let Measured { mut profiles, sessions, signal, failure } =
        repeat::measure(&mut bench, &jobs, &mut signals, &mut progress);
    let label = args.ltp.profile.as_deref().unwrap_or_default();
    let result = match profiles.pop() {
        None => return failure.map_or(Ok(()), Err),
        Some(only) if !several => Delivery::One(Box::new(only)),
        Some(last) => {
            profiles.push(last);
            Delivery::Runs(Series::new(label, profiles))
        }
    };
    let delivered = deliver::deliver(args, &result, json, exports);
    if jobs.iter().any(|job| job.targets.len() > 20) && !sessions.is_empty() {
        progress.say("taking the probes off");
    }
    drop(sessions);
    delivered?;
    match failure {
        Some(failure) if signal.is_none() => Err(failure),
        _ => deliver::verdict(result.profiles(), signal, args.max_loss),
    }
}

/// What all jobs of a run share.
struct Bench<'a> {
    args: &'a RunArgs,
    host: &'a HostFacts,
    runtime: &'a tokio::runtime::Runtime,
}

/// One job, measured.
struct Done {
    profile: Profile,
    /// The probes, still on: taking them off takes the kernel long.
    session: Probes,
    signal: Option<(u8, &'static str)>,
    failure: Option<Failure>,
}

impl Bench<'_> {
    /// Probes on, load, and what came of it.
    fn measure(
        &mut self,
        job: &Job,
        signals: &mut Signals,
        progress: &mut Progress,
    ) -> Result<Done, Failure> {
        let args = self.args;
        let precision = Precision::from(args.precision);
        let mut modules = Vec::new();
        if let Some(name) = job.targets.first().and_then(|target| target.module.as_deref()) {
            modules.push(module::collect(name)?);
        }
        for warning in &job.warnings {
            progress.say(&format!("warning: {}", warning.text));
        }
        let attaching = Instant::now();
        let options = Options {
            precision,
            allow_shared: args.allow_shared,
            empty: false,
            backend: args.backend,
            force: args.force,
            trace_buffer_kib: args.trace_buffer,
            self_time: args.self_time,
        };
        let mut session = attach(&job.targets, options)?;
        let probes = format!(
            "probes on {} handler{} attached in {:.2} s; their histograms take {:.1} MiB of kernel memory",
            job.targets.len(),
            if job.targets.len() == 1 { "" } else { "s" },
            attaching.elapsed().as_secs_f64(),
            session.memory_bytes() as f64 / f64::from(1 << 20),
        );
        let without = "no probes: the load and its costs alone are measured";
        progress.say(if args.no_probe { without } else { &probes });
        let (counter, questions) = HitCounter::channel();
        let plan = Plan {
            warmup: args.warmup,
            duration: job.duration,
            interval: args.interval,
            loads: job.loads(args, counter),
            questions,
            watch: args.watch.watch.clone(),
            sample: args.watch.every(),
        };
        let measured = window::measure(plan, precision, &mut session, signals, progress);
        let mut window = self.runtime.block_on(measured)?;
        progress.end();

        // Before the probes come off: afterwards nothing tells that somebody else had been there.
        let foreign = session.foreign_program();
        if window.trouble.is_none() {
            window.trouble = settle(&mut session, &mut window.recorder).err();
        }
        let signal = window.signal;
        let trouble = window.trouble.take();
        let common = Common {
            clock: args.clock.into(),
            precision,
            kernel_memory_bytes: session.memory_bytes(),
            host: self.host.clone(),
            modules,
        };
        let mut profile = assemble::profile(&common, window)?;
        profile.load_profile = job
            .profile
            .clone()
            .map(|name| LoadProfileUsed { name, least_hits: job.least_hits.clone() });
        profile.interrupted |= trouble.is_some();
        profile.warnings.extend(job.warnings.iter().cloned());
        profile.warnings.extend(trouble.as_ref().map(ended_by_error));
        profile.warnings.extend(foreign.as_ref().ok().and_then(Option::as_ref).map(shared));
        profile.warn();
        Ok(Done { profile, session, signal, failure: foreign.err().map(Failure::from).or(trouble) })
    }
}

fn ended_by_error(trouble: &Failure) -> WarningRecord {
    WarningRecord {
        code: "ended-by-error".to_owned(),
        text: format!("the run was ended by an error: {trouble}; this covers the time until then"),
        handlers: Vec::new(),
    }
}

fn shared((handler, prog_id): &(String, u32)) -> WarningRecord {
    WarningRecord {
        code: "shared".to_owned(),
        text: format!(
            "another tracing program (id {prog_id}) was on {handler} during the run: its time is \
             counted as the handler's, and calls under way when it came or went were not \
             measured; measure again without it"
        ),
        handlers: vec![handler.clone()],
    }
}

/// Drains until the books balance. Taking probes off takes the kernel long (a grace period each), so
/// the report does not wait for it, unless other processes keep the handlers too busy for a moment
/// in which no call began or ended.
fn settle(session: &mut Probes, recorder: &mut Recorder) -> Result<(), Failure> {
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
fn attach(targets: &[Target], options: Options) -> Result<Probes, Failure> {
    Probes::attach(targets, options).map_err(|error| {
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

fn internal(what: &str) -> Failure {
    Failure::new(exit::INTERNAL, what)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
