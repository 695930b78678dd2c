//! `profiler run`: probes on, load, probes off, report.

mod assemble;
mod deliver;
mod interval;
mod signals;
mod window;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use super::exports::Exports;
use crate::cli::RunArgs;
use crate::error::{Failure, exit};
use crate::load::{BuiltinLoad, CommandLoad, IdleLoad, Load};
use crate::probe::{Options, Precision, ProbeError, Probes, Session as _, recorder::Recorder};
use crate::profile::OutputFile;
use crate::progress::Progress;
use crate::target::{KernelFiles, ResolveError, Target};
use crate::warning::WarningRecord;
use crate::{host, module, privileges};

use assemble::Common;
use signals::Signals;
use window::Plan;

/// Window of a load that does not end by itself, where no other was asked for.
const DEFAULT_DURATION: Duration = Duration::from_secs(10);

/// How often [`settle`] tries with the probes on.
const SETTLE_ATTEMPTS: u32 = 5;

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
    let exports = Exports::open(&args.export, json.as_ref())?;
    let mut progress = Progress::new(args.quiet);

    let attaching = Instant::now();
    let options = Options {
        precision,
        allow_shared: args.allow_shared,
        empty: false,
        backend: args.backend,
        force: args.force,
    };
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
    let mut window = runtime.block_on(async {
        let mut signals = Signals::new()?;
        window::measure(plan(args), precision, &mut session, &mut signals, &mut progress).await
    })?;
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
        host,
        modules,
    };
    let mut profile = assemble::profile(&common, window)?;
    if let Some(trouble) = &trouble {
        profile.interrupted = true;
        profile.warnings.push(WarningRecord {
            code: "ended-by-error".to_owned(),
            text: format!(
                "the run was ended by an error: {trouble}; this covers the time until then"
            ),
            handlers: Vec::new(),
        });
    }
    if let Ok(Some((handler, prog_id))) = &foreign {
        profile.warnings.push(WarningRecord {
            code: "shared".to_owned(),
            text: format!(
                "another tracing program (id {prog_id}) was on {handler} during the run: its time is \
                 counted as the handler's, and calls under way when it came or went were not \
                 measured; measure again without it"
            ),
            handlers: vec![handler.clone()],
        });
    }
    profile.warn();
    let delivered = deliver::deliver(args, &profile, json, exports);
    if targets.len() > 20 {
        progress.say("taking the probes off");
    }
    drop(session);
    delivered?;
    foreign?;
    match trouble {
        Some(trouble) if signal.is_none() => Err(trouble),
        _ => deliver::verdict(&profile, signal),
    }
}

fn plan(args: &RunArgs) -> Plan {
    let ends_by_itself = !args.load.is_empty() || args.operations.is_some();
    Plan {
        warmup: args.warmup,
        duration: args.duration.or((!ends_by_itself).then_some(DEFAULT_DURATION)),
        interval: args.interval,
        loads: loads(args),
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

fn loads(args: &RunArgs) -> Vec<Box<dyn Load>> {
    if let [program, rest @ ..] = args.load.as_slice() {
        let rest: Vec<OsString> = rest.to_vec();
        return vec![Box::new(CommandLoad::new(program.clone(), rest))];
    }
    if args.builtin.is_empty() {
        return vec![Box::new(IdleLoad)];
    }
    let measured_from = (!args.warmup.is_zero()).then(|| Instant::now() + args.warmup);
    let make = |kind: &_| -> Box<dyn Load> {
        Box::new(
            BuiltinLoad::new(*kind)
                .workers(args.workers)
                .rate(args.rate)
                .operations(args.operations)
                .pin(args.pin)
                .measured_from(measured_from)
                .directory(args.load_dir.clone()),
        )
    };
    args.builtin.iter().map(make).collect()
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
