//! `profiler lab`: measures a driver in VMs, under virtual time by default.

mod options;
mod output;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{report::stdout_width, to_stdout};
use crate::cli::LabArgs;
use crate::error::{Failure, exit};
pub use crate::lab::guest::run as guest;
use crate::lab::{self, Bench, Measured, Options, builds, tools};
use crate::progress::Progress;
use crate::recording::Meter;
use crate::text::plural;

use output::Outputs;

/// See the [command line](LabArgs).
///
/// # Errors
/// With the exit code of the [table](exit). What was measured before a failure has been reported and
/// saved.
pub fn run(args: &LabArgs) -> Result<(), Failure> {
    let vng = tools::find(&args.vng)
        .map_err(|error| Failure::new(exit::CANNOT_MEASURE, error.to_string()))?;
    let of_meter = |meter: &Meter| options::of(args, &vng, *meter);
    let options: Vec<Options> = args.meters().iter().map(of_meter).collect::<Result<_, _>>()?;
    let Some((options, others)) = options.split_first() else { return Ok(()) };
    let folder = tempfile::Builder::new()
        .prefix("profiler-lab-")
        .tempdir()
        .map_err(|error| cannot_write(&std::env::temp_dir(), &error))?;
    let benches = builds::benches(options, true, folder.path())?;
    let mut outputs = Outputs::open(args, &benches)?;
    let program = folder.path().join("profiler");
    fs::copy("/proc/self/exe", &program).map_err(|error| cannot_write(&program, &error))?;

    if options.meter == Meter::Exact {
        lab::plugin::write(folder.path()).map_err(|error| cannot_write(folder.path(), &error))?;
    }

    let mut progress = Progress::new(args.quiet);
    for (number, bench) in benches.iter().enumerate() {
        let below = folder.path().join(format!("kernel-{number}"));
        let settings = options.settings(folder.path(), &below);
        let measured = watch(bench, &settings, &mut progress);
        let counted = measured.baseline.clone();
        if let Some(failure) = outputs.deliver(number, bench, settings.boots, measured)? {
            return Err(failure);
        }
        for (other, options) in others.iter().enumerate() {
            let below = folder.path().join(format!("kernel-{number}-{other}"));
            let settings = options.settings(folder.path(), &below);
            let measured = watch(bench, &settings, &mut progress);
            to_stdout(&lab::table::beside(&counted, &measured.baseline, stdout_width()))?;
            if let Some(failure) = measured.failure {
                return Err(failure);
            }
        }
    }
    Ok(())
}

/// Runs the boots of one kernel with a progress bar of runs.
pub(super) fn watch(bench: &Bench, settings: &lab::Settings, progress: &mut Progress) -> Measured {
    let sides = if bench.candidate.is_some() { 4 } else { 1 };
    let work = settings.work.len() as u64;
    let runs = u64::from(settings.boots) * u64::from(settings.repeat) * sides * work;
    progress.say(&format!(
        "Linux {}: {} boot{}, {runs} run{}, {} at a time, clock {}",
        bench.kernel.release,
        settings.boots,
        plural(settings.boots),
        plural(runs),
        settings.jobs,
        settings.clock,
    ));
    progress.begin_steps("runs", runs);
    let started = AtomicU64::new(0);
    let bar = &*progress;
    let measured = lab::run(bench, settings, &|| {
        bar.at_step(started.fetch_add(1, Ordering::Relaxed));
    });
    progress.end();
    measured
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(exit::BAD_OUTPUT, format!("cannot write {}: {error}", path.display()))
}

/// The guest has another working directory.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
