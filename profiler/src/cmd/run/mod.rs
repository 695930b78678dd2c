//! `profiler run`: probes on, load, probes off, report.

mod assemble;
mod deliver;
mod driver;
mod interval;
mod jobs;
mod live;
mod repeat;
mod signals;
mod window;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::exports::Exports;
use crate::atomic_file::OutputFile;
use crate::cli::RunArgs;
use crate::error::{Failure, exit};
use crate::kernel::host::HostFacts;
use crate::kernel::target::{KernelFiles, ResolveError, Resolved, Target};
use crate::kernel::{host, privileges};
use crate::load::HitCounter;
use crate::probe::{FellBack, Options, Precision, ProbeError, Probes, Session as _};
use crate::profile::warning::{Handlers, Warning, WarningRecord};
use crate::profile::{Backend, LoadProfileUsed, Profile, Series};
use crate::progress::Progress;
use crate::stats::nanoseconds;
use crate::text::plural;

use assemble::Common;
use deliver::Delivery;
use driver::{Change, Driver, Loads};
use jobs::Job;
use repeat::Measured;
pub(super) use signals::Signals;
use window::Plan;

/// Probes on so many handlers come off before anybody waits.
const SOON_OFF: usize = 20;

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
    let known = Loads::now();
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
    let mut bench = Bench { args, host: &host, runtime: &runtime, known };
    let Measured { mut profiles, signal, failure, changed } =
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
    deliver::deliver(args, &result, json, exports)?;
    match failure.or(changed) {
        Some(failure) if signal.is_none() => Err(failure),
        _ => deliver::verdict(result.profiles(), signal, args.max_loss),
    }
}

/// What all jobs of a run share.
struct Bench<'a> {
    args: &'a RunArgs,
    host: &'a HostFacts,
    runtime: &'a tokio::runtime::Runtime,
    /// What was loaded before the jobs' handlers were looked up.
    known: Loads,
}

/// One job, measured.
struct Done {
    profile: Profile,
    signal: Option<(u8, &'static str)>,
    failure: Option<Failure>,
    /// The driver did not stay the same meanwhile.
    replaced: Option<Failure>,
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
        let driver = Driver::of(&job.targets)?;
        let again = driver.as_ref().map(|driver| driver.look_up(&job.targets, &self.known));
        let (targets, gone) = match again.transpose()?.flatten() {
            Some(Resolved { targets, left_out }) => {
                progress.say("the module was loaded anew: its handlers were looked up again");
                (targets, left_out)
            }
            None => (job.targets.clone(), Vec::new()),
        };
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
            keeper: true,
        };
        let mut session = attach(&targets, options)?;
        let count = session.targets().len();
        let probes = format!(
            "probes on {count} handler{} attached in {:.2} s; their histograms take {:.1} MiB of kernel memory",
            plural(count),
            attaching.elapsed().as_secs_f64(),
            session.memory_bytes() as f64 / f64::from(1 << 20),
        );
        let without = "no probes: the load and its costs alone are measured";
        progress.say(if args.no_probe { without } else { &probes });
        let other_backends = fell_back(session.fell_back());
        for warning in &other_backends {
            progress.say(&format!("warning: {}", warning.text));
        }
        let least_hits = job.least_hits_of(&session.targets());
        let mut left_out = [&job.left_out[..], &gone, session.left_out()].concat();
        left_out.sort();
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
        window.settle(&mut session);
        let change = driver.as_ref().and_then(Driver::change);
        let signal = window.signal;
        let trouble = window.trouble.take();
        let kernel_memory_bytes = session.memory_bytes();
        // Now, and not when all is written: programs on its functions keep a module loaded, and whoever
        // reads a report may want to load the next build.
        if count > SOON_OFF {
            progress.say("taking the probes off");
        }
        drop(session);
        let common = Common {
            clock: args.clock.into(),
            precision,
            kernel_memory_bytes,
            host: self.host.clone(),
            modules: driver.iter().map(|driver| driver.facts().clone()).collect(),
        };
        let mut profile = assemble::profile(&common, window)?;
        profile.load_profile = job.profile.clone().map(|name| LoadProfileUsed { name, least_hits });
        profile.left_out = left_out;
        profile.interrupted |= trouble.is_some();
        profile.warnings.extend(job.warnings.iter().cloned());
        profile.warnings.extend(change.as_ref().map(Change::warning));
        profile.warnings.extend(other_backends);
        profile.warnings.extend(trouble.as_ref().map(ended_by_error));
        profile.warnings.extend(foreign.as_ref().ok().and_then(Option::as_ref).map(shared));
        profile.warn();
        let failure = foreign.err().map(Failure::from).or(trouble);
        let replaced = change.as_ref().map(Change::failure);
        Ok(Done { profile, signal, failure, replaced })
    }
}

/// A warning for each way in which backends were refused: figures of two backends do not compare.
fn fell_back(handlers: &[FellBack]) -> Vec<WarningRecord> {
    let mut ways: BTreeMap<(Backend, &str), Vec<String>> = BTreeMap::new();
    for FellBack { handler, backend, reason } in handlers {
        ways.entry((*backend, reason)).or_default().push(handler.clone());
    }
    let record = |((backend, reason), handlers): ((_, &str), _)| -> WarningRecord {
        Warning::OtherBackend(Handlers(handlers), backend, reason.to_owned()).into()
    };
    ways.into_iter().map(record).collect()
}

fn ended_by_error(trouble: &Failure) -> WarningRecord {
    Warning::EndedByError(trouble.to_string()).into()
}

fn shared((handler, prog_id): &(String, u32)) -> WarningRecord {
    Warning::Shared(Handlers(vec![handler.clone()]), *prog_id).into()
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

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
