//! The course of a run: probes on, load, probes off, recording.

pub mod args;
mod driver;
mod jobs;
mod live;
mod repeat;
mod signals;
mod verdict;
mod window;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use profiler_base::error::{Failure, exit};
use profiler_base::progress::Progress;
use profiler_base::text::plural;
use profiler_kernel::host::{self, HostFacts};
use profiler_kernel::module::Loads;
use profiler_kernel::target::{KernelFiles, LeftOut, Resolved, Target};
use profiler_probe::{
    self as probe, FellBack, Precision, ProbeError, Probes, RunStats, Session as _,
};
use profiler_recording::warning::{Handlers, Warning, WarningRecord};
use profiler_recording::{Backend, HistogramLayout, Recording};

use crate::args::RunArgs;
use driver::Driver;
use jobs::Job;
use signals::Signals;
use window::{Context, Window};

/// Probes on so many handlers come off before anybody waits.
const SOON_OFF: usize = 20;

/// A run that can begin: its handlers and loads are there.
pub struct Run<'a> {
    args: &'a RunArgs,
    /// What was loaded before the handlers were looked up.
    known: Loads,
    /// Of that kernel with these modules.
    files: KernelFiles,
    jobs: Vec<Job>,
    host: HostFacts,
    runtime: Runtime,
    /// Set once probes were attached, as all histograms of a run have the same digits: why they have fewer than by default, if
    /// they do.
    coarser: OnceCell<Option<WarningRecord>>,
}

/// What a run has brought.
pub struct Measured {
    /// One recording, or one for each part and repetition, in order.
    pub recordings: Vec<Recording>,
    /// Why there are no more, or what is wrong with these.
    pub end: Result<(), Failure>,
}

impl<'a> Run<'a> {
    /// Looks up all that the arguments name.
    ///
    /// # Errors
    /// If a handler or load is missing or cannot be measured, arguments contradict each other, or the system has no threads.
    pub fn prepare(args: &'a RunArgs) -> Result<Self, Failure> {
        let known = Loads::now();
        let files = KernelFiles::default();
        let jobs = jobs::of(args, &files)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| internal(format!("cannot start the async runtime: {error}")))?;
        let host = host::collect();
        Ok(Self { args, known, files, jobs, host, runtime, coarser: OnceCell::new() })
    }

    /// Whether it has parts or repetitions, which are recordings of their own.
    pub fn is_several(&self) -> bool {
        self.jobs.len() > 1 || self.args.repeat > 1
    }

    /// Measures all jobs, unless a signal or an error ends the run early.
    ///
    /// # Errors
    /// If the system refuses to hand over signals.
    pub fn measure(&self, progress: &mut Progress) -> Result<Measured, Failure> {
        let mut signals = self.runtime.block_on(async { Signals::new() })?;
        Ok(repeat::all(self, &mut signals, progress))
    }

    /// Attaches the probes of a job, runs its loads, and makes the recording; what is wrong with it, too.
    fn one(
        &self,
        job: &Job,
        signals: &mut Signals,
        progress: &mut Progress,
    ) -> Result<(Recording, Option<Failure>), Failure> {
        let driver = Driver::of(&job.targets, &self.known, &self.files)?;
        let (targets, gone) = self.targets(job, driver.as_ref(), progress)?;
        warn(progress, &job.warnings);
        let mut session = self.attach(&targets, progress)?;
        let count = session.targets().len();
        let stats = RunStats::begin(&targets, &session.targets());
        let other_backends = fell_back(&session.fell_back);
        warn(progress, &other_backends);
        let load_profile = job.profile_used(&session.targets());
        let mut left_out = [&job.left_out[..], &gone, &session.left_out].concat();
        left_out.sort();
        let mut context = Context { session: &mut session, signals, progress };
        let recorded = Window::record(job, self.args.warmup, self.precision(), &mut context);
        let mut window = self.runtime.block_on(recorded)?;
        progress.end();

        // Before the probes come off: afterwards another tracer cannot be found any more.
        let foreign = session.foreign_program();
        window.settle(&mut session);
        let change = driver.as_ref().and_then(Driver::change);
        let missed = driver.as_ref().map(|driver| driver.missed(change.is_none()));
        let histogram = HistogramLayout {
            kernel_memory_bytes: session.memory_bytes(),
            direct: session.is_direct(),
            ..HistogramLayout::of_digits(self.precision().digits())
        };
        let averages = stats.and_then(|stats| stats.map(|stats| stats.averages()).transpose());
        let traced = session.call_tree()?;
        // Before the report: programs on its functions keep a module loaded, and the next build may be waiting.
        if count > SOON_OFF {
            progress.say("taking the probes off");
        }
        drop(session);
        let (call_tree, too_deep) = traced.map_or((None, 0), |of| (Some(of.tree), of.too_deep));
        let (signal, trouble) = (window.signal.map(signals::ended_by), window.trouble.take());
        let mut warnings = job.warnings.clone();
        warnings.extend(change.clone().map(|what| Warning::DriverReplaced(what).into()));
        warnings.extend(missed.into_iter().flatten());
        warnings.extend(other_backends);
        warnings.extend(self.coarser.get().cloned().flatten());
        warnings.extend((too_deep > 0).then(|| Warning::TooDeep(too_deep).into()));
        warnings.extend(by_kernel(averages));
        warnings.extend(trouble.as_ref().map(ended_by_error));
        warnings.extend(foreign.as_ref().ok().and_then(Option::as_ref).map(shared));
        let mut recording = Recording {
            load_profile,
            interrupted: signal.is_some() || trouble.is_some(),
            host: self.host.clone(),
            modules: driver.iter().map(|driver| driver.facts.clone()).collect(),
            left_out,
            call_tree,
            warnings,
            ..window.recording(self.args.clock, histogram)
        };
        recording.warn();
        let error = signal.or(foreign.err().map(Failure::from)).or(trouble);
        let error = error.or(change.map(driver::replaced)).or(nothing_measured(&recording));
        Ok((recording, error))
    }

    /// The handlers, and what was left out of them if they had to be looked up again.
    fn targets(
        &self,
        job: &Job,
        driver: Option<&Driver>,
        progress: &Progress,
    ) -> Result<(Vec<Target>, Vec<LeftOut>), Failure> {
        if let Some(probes) = driver.and_then(Driver::own_probes) {
            progress.say(&probes);
        }
        let again = driver.map(|driver| driver.look_up(&job.targets, &self.known));
        let Some(Resolved { targets, left_out }) = again.transpose()?.flatten() else {
            return Ok((job.targets.clone(), Vec::new()));
        };
        progress.say("the module was loaded anew: its handlers were looked up again");
        Ok((targets, left_out))
    }

    /// Attaches; with fewer digits where memory has room for no more.
    fn attach(&self, targets: &[Target], progress: &Progress) -> Result<Probes, Failure> {
        let attaching = Instant::now();
        // All jobs of a run have the same digits: those for which there is room with the most handlers.
        let most = self.jobs.iter().map(|job| job.targets.len()).max().unwrap_or_default();
        let room_for = if self.coarser.get().is_none() { most } else { 0 };
        let precision = self.precision();
        let mut options = probe::Options { precision, room_for, ..self.args.probes() };
        let mut coarser = None;
        let mut attached = Probes::attach(targets, options);
        if let Err(ProbeError::Memory { text, fits_with_two_digits: true }) = &attached
            && self.args.precision.is_none()
            && self.coarser.get().is_none()
        {
            let warning = WarningRecord::from(Warning::Coarser(text.clone()));
            warn(progress, std::slice::from_ref(&warning));
            coarser = Some(warning);
            options.precision = Precision::Two;
            attached = Probes::attach(targets, options);
        }
        let session = attached?;
        self.coarser.get_or_init(|| coarser);
        let count = session.targets().len();
        let probes = format!(
            "probes on {count} handler{} attached in {:.2} s; their histograms take {:.1} MiB of kernel memory",
            plural(count),
            attaching.elapsed().as_secs_f64(),
            session.memory_bytes() as f64 / f64::from(1 << 20),
        );
        let without = "no probes: the load and its costs alone are measured";
        progress.say(if self.args.no_probe { without } else { &probes });
        Ok(session)
    }

    fn precision(&self) -> Precision {
        match self.coarser.get() {
            Some(Some(_)) => Precision::Two,
            _ => self.args.precision.unwrap_or_default(),
        }
    }
}

fn warn(progress: &Progress, warnings: &[WarningRecord]) {
    for warning in warnings {
        progress.say(&format!("warning: {}", warning.text));
    }
}

/// A warning for each way in which backends were refused: figures of two backends do not compare.
fn fell_back(handlers: &[FellBack]) -> Vec<WarningRecord> {
    let mut ways: BTreeMap<(Backend, &str), Vec<String>> = BTreeMap::new();
    for FellBack { handler, backend, reason } in handlers {
        ways.entry((*backend, reason)).or_default().push(handler.clone());
    }
    let warnings = ways.into_iter().map(|((backend, reason), handlers)| {
        Warning::OtherBackend(Handlers(handlers), backend, reason.to_owned()).into()
    });
    warnings.collect()
}

/// What the kernel's statistics say of the programs that no probe measures.
fn by_kernel(averages: io::Result<Option<Vec<String>>>) -> Option<WarningRecord> {
    let text = match averages {
        Ok(averages) => averages?.join(", "),
        Err(error) => format!("they cannot be read: {error}"),
    };
    Some(Warning::BpfStats(text).into())
}

/// The error of a run that attached to none of its BPF programs.
fn nothing_measured(recording: &Recording) -> Option<Failure> {
    let error = ProbeError::all_left_out(&recording.left_out)?;
    recording.handlers.is_empty().then(|| error.into())
}

fn ended_by_error(trouble: &Failure) -> WarningRecord {
    Warning::EndedByError(trouble.to_string()).into()
}

fn shared((handler, prog_id): &(String, u32)) -> WarningRecord {
    Warning::Shared(Handlers(vec![handler.clone()]), *prog_id).into()
}

/// A fault of the profiler or of the system.
fn internal(what: impl Into<String>) -> Failure {
    Failure::new(exit::INTERNAL, what)
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
