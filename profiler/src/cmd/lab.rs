//! `profiler lab`: measures a driver in VMs, under virtual time by default.

mod options;
mod output;

use std::fs;

use super::{report::stdout_width, to_stdout};
use crate::cli::LabArgs;
use crate::error::{Failure, exit};
pub use crate::lab::guest::run as guest;
use crate::lab::{self, Options, builds, tools};
use crate::progress::Progress;
use crate::recording::Meter;

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
    let folder = lab::private_folder("profiler-lab-")?;
    let benches = builds::of_kernels(options, true, folder.path())?;
    let mut outputs = Outputs::open(args, &benches)?;
    let program = folder.path().join("profiler");
    fs::copy("/proc/self/exe", &program)
        .map_err(|error| Failure::cannot_write(&program, &error))?;

    let mut progress = Progress::new(args.quiet);
    for (number, bench) in benches.iter().enumerate() {
        let below = folder.path().join(format!("kernel-{number}"));
        let settings = options.settings(folder.path(), &below);
        let measured = lab::run_with_progress(bench, &settings, &mut progress);
        let counted = measured.baseline.clone();
        if let Some(failure) = outputs.deliver(number, bench, settings.boots, measured)? {
            return Err(failure);
        }
        for (other, options) in others.iter().enumerate() {
            let below = folder.path().join(format!("kernel-{number}-{other}"));
            let settings = options.settings(folder.path(), &below);
            let measured = lab::run_with_progress(bench, &settings, &mut progress);
            to_stdout(&lab::table::beside(&counted, &measured.baseline, stdout_width()))?;
            if let Some(failure) = measured.failure {
                return Err(failure);
            }
        }
    }
    Ok(())
}
