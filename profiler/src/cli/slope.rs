//! Arguments of `profiler slope`.

use std::path::PathBuf;

use clap::Args;

use super::GuestArgs;
use profiler_export::slope::max_slope;
use profiler_load::{BuiltinKind, Points};
use profiler_verdict::Limit;

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
