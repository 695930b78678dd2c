//! `profiler slope`: what handlers take for each unit of what they walk over, and whether a change makes that more.

use super::{save, stdout_width, to_stdout};
use crate::atomic_file::OutputFile;
use crate::cli::slope::SlopeArgs;
use crate::error::{Failure, exit};
use crate::export::slope::{SlopeReport, document};
use crate::lab::plan::RunSpec;
use crate::lab::slope::measure;
use crate::lab::subject::Subject;
use crate::lab::{Options, usual_length};
use crate::progress::Progress;
use crate::recording::Meter;

/// See the [command line](SlopeArgs).
///
/// # Errors
/// With the exit code of the [table](exit); with [`exit::REGRESSION`] or [`exit::INCONCLUSIVE`] once everything has been
/// reported and saved.
pub fn run(args: &SlopeArgs) -> Result<(), Failure> {
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let files = &args.agent.agent_file;
    let mut builds = Subject::all(&args.builds, files)?;
    builds.iter().try_for_each(|build| build.check_parameters(&args.module_params))?;
    let candidate = builds.split_off(1);
    let load = args.builtin.unwrap_or_else(|| args.dimension.usual_load());
    let length = usual_length(Meter::Exact, &[load]);
    let mut run = RunSpec { length, ..RunSpec::counted(vec![load], 1) };
    if !args.handlers.is_empty() {
        run.handlers.clone_from(&args.handlers);
    }
    let options = Options {
        kernels: args.kernel.iter().cloned().collect(),
        baseline: builds,
        baseline_params: args.module_params.clone(),
        candidate,
        candidate_params: args.module_params.clone(),
        agent: args.agent.beside(&[&args.builds])?,
        run,
        cost: true,
        logs: args.logs.clone(),
        ..Options::counted()
    };
    let measured = measure(&options, &args.dimension, &mut Progress::new(args.quiet))?;
    if let Some(failure) = measured.failure {
        return Err(failure);
    }
    let sides = [&measured.baseline, &measured.candidate].map(Vec::as_slice);
    let report = SlopeReport::of(sides, load, &args.dimension, args.max_slope);
    if report.handlers.is_empty() {
        let text = "the load called no handler at each point: choose another with --builtin";
        return Err(Failure::new(exit::NO_HITS, text));
    }
    save(json, &report)?;
    to_stdout(&document(&report).text(stdout_width()))?;
    match (report.failed().as_slice(), report.called_by_one_build.as_slice()) {
        ([], []) => Ok(()),
        ([], names) => {
            let names = names.join(", ");
            let text = format!(
                "inconclusive: one build alone calls {names} at each point: was it renamed? Name by --handler what \
                 is to be judged"
            );
            Err(Failure::new(exit::INCONCLUSIVE, text))
        }
        (failed, _) => {
            let text =
                format!("takes more for each unit of {}: {}", report.dimension, failed.join(", "));
            Err(Failure::new(exit::REGRESSION, text))
        }
    }
}
