//! `profiler slope`: what handlers take for each unit of what they walk over, and whether a change makes that more.

use super::{save, stdout_width, to_stdout};
use crate::cli::slope::SlopeArgs;
use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, bail};
use profiler_base::progress::Progress;
use profiler_export::slope::{SlopeReport, document};
use profiler_lab::plan::RunSpec;
use profiler_lab::slope::measure;
use profiler_lab::{Options, usual_length};
use profiler_recording::Meter;

/// See the [command line](SlopeArgs).
///
/// # Errors
/// With the exit code of the [table](profiler_base::error::exit); with that of a regression or of an inconclusive report once everything
/// has been reported and saved.
pub fn run(args: &SlopeArgs) -> Result<(), Failure> {
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let (baseline, candidate) = args.builds.split_at(1);
    let given = Options::given([baseline, candidate], &args.guests)?;
    let mut builds = given.subjects.iter().flatten();
    builds.try_for_each(|build| build.check_parameters(&args.module_params))?;
    let load = args.builtin.unwrap_or_else(|| args.dimension.usual_load());
    let length = usual_length(Meter::Exact, &[load]);
    let mut run = RunSpec { length, ..RunSpec::counted(vec![load], 1) };
    if !args.handlers.is_empty() {
        run.handlers.clone_from(&args.handlers);
    }
    let options = Options {
        kernels: args.kernel.iter().cloned().collect(),
        params: [&args.module_params; 2].map(String::clone),
        run,
        cost: true,
        ..given
    };
    let mut measured = measure(&options, &args.dimension, &mut Progress::new(args.guests.quiet))?;
    if let Some(failure) = measured.take_failure() {
        return Err(failure);
    }
    let sides = measured.runs.each_ref().map(Vec::as_slice);
    let report = SlopeReport::of(sides, load, &args.dimension, args.max_slope);
    if report.handlers.is_empty() {
        bail!(NO_HITS, "the load called no handler at each point: choose another with --builtin");
    }
    save(json, &report)?;
    to_stdout(&document(&report).text(stdout_width()))?;
    match (report.failed().as_slice(), report.called_by_one_build.as_slice()) {
        ([], []) => Ok(()),
        ([], names) => {
            let names = names.join(", ");
            bail!(
                INCONCLUSIVE,
                "inconclusive: one build alone calls {names} at each point: was it renamed? Name by --handler what \
                 is to be judged"
            )
        }
        (failed, _) => {
            bail!(
                REGRESSION,
                "takes more for each unit of {}: {}",
                report.dimension,
                failed.join(", ")
            )
        }
    }
}
