//! `profiler lab`: measures a driver in VMs, under virtual time by default.

mod options;
mod output;

use crate::cli::lab::LabArgs;
use profiler_base::error::{Failure, exit};
use profiler_base::progress::Progress;
pub use profiler_lab::guest::run as guest;
use profiler_lab::{self as lab, builds};

use output::Outputs;

/// See the [command line](LabArgs).
///
/// # Errors
/// With the exit code of the [table](exit). What was measured before a failure has been reported and
/// saved.
pub fn run(args: &LabArgs) -> Result<(), Failure> {
    let options = options::of(args)?;
    let folder = lab::private_folder("profiler-lab-")?;
    let benches = builds::of_kernels(&options, folder.path())?;
    let mut outputs = Outputs::open(args, &benches)?;
    let mut progress = Progress::new(args.guests.quiet);
    let mut is_reached = false;
    for (number, bench) in benches.iter().enumerate() {
        let measured = lab::run_with_progress(bench, &options, &[options.job()], &mut progress);
        is_reached |= measured.runs.iter().flatten().any(|run| run.calls() > 0);
        if let Some(failure) = outputs.deliver(number, bench, measured)? {
            return Err(failure);
        }
    }
    if is_reached {
        return Ok(());
    }
    let text = "no load reached a handler: choose another with --builtin or --profile; `profiler list --module FILE.ko`, or `--agent COMMAND`, \
                shows where the kernel calls it";
    Err(Failure::new(exit::NO_HITS, text))
}
