//! `profiler slope`: what handlers take for each unit of what they walk over, and whether a change makes that more.

use std::path::PathBuf;

use clap::Args;

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, bail};
use profiler_base::progress::Progress;
use profiler_export::slope::{SlopeReport, document, max_slope};
use profiler_lab::plan::RunSpec;
use profiler_lab::slope::measure;
use profiler_lab::{Options, usual_length};
use profiler_load::{BuiltinKind, Points};
use profiler_recording::Meter;
use profiler_run::args::GuestArgs;
use profiler_verdict::Limit;

use super::{save, stdout_width, to_stdout};

const EXAMPLES: &str = "\
Exit codes: 0 pass, 10 if a handler of the second build takes more for each unit than it may.

Examples:
  # what handlers of file operations take for each folder of a path
  profiler slope hids_driver.ko --dimension depth=0,16,64
  # whether a change makes execve's handlers dearer for each byte of arguments
  profiler slope base.ko head.ko --dimension args=0,4000,16000 --handler 'execve_*'";

/// Arguments of `profiler slope`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SlopeArgs {
    /// The build, or the baseline and the candidate: drivers, or subjects such as `run: COMMAND` and `bpf: FILE.bpf.o`.
    #[arg(required = true, num_args = 1..=2, value_name = "BUILD")]
    pub builds: Vec<PathBuf>,
    /// What operations have more of, and at least three points of it: depth (folders above the files of loads on files), args and
    /// env (bytes, of execve), descriptors (open ones of the process), ancestors (processes above it).
    #[arg(long, value_name = "NAME=N,N,N...")]
    pub dimension: Points,
    /// Kernel to boot, as for `profiler lab`.
    #[arg(long, value_name = "FILE|FOLDER|VERSION")]
    pub kernel: Option<String>,
    /// Parameters of the module, as insmod takes them.
    #[arg(long, value_name = "NAME=VALUE ...", default_value = "")]
    pub module_params: String,
    /// Handler to measure, by name or glob (repeatable) [default: all].
    #[arg(long = "handler", short = 'H', value_name = "NAME|GLOB")]
    pub handlers: Vec<String>,
    /// Built-in load [default: open for depth, else execve].
    #[arg(long, value_name = "KIND")]
    pub builtin: Option<BuiltinKind>,
    /// How much more the candidate may take from the first point to the last, such as '5%' of what the baseline takes, or '+10' in
    /// instructions [default: 0.5%, and at least 4 instructions].
    #[arg(long, value_name = "LIMIT", value_parser = max_slope)]
    pub max_slope: Option<Limit>,
    /// Write everything as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// What runs in the guests beside that, and what is kept and said of them.
    #[command(flatten)]
    pub guests: GuestArgs,
}

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
