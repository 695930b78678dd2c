//! Arguments of `profiler bisect`.

use std::path::PathBuf;

use clap::Args;

use super::GuestArgs;

use profiler_verdict::Limits;

const EXAMPLES: &str = "\
Exit codes: 0 one commit was found, 11 it lies among commits that cannot be measured, or the bad revision is not slower.

Examples:
  # which commit made connect slower
  profiler bisect --good v1.2 --bad HEAD --build 'make -C driver' --handler 'connect_*'
  # after a stop, the same command goes on; this forgets what an earlier one has found
  profiler bisect --good v1.2 --bad HEAD --build 'make -C driver' --handler 'connect_*' --start-over";

/// Arguments of `profiler bisect`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BisectArgs {
    /// A revision of the driver that is fast enough.
    #[arg(long, value_name = "REV")]
    pub good: String,
    /// A later revision that is slower.
    #[arg(long, value_name = "REV")]
    pub bad: String,
    /// Command for sh that builds the module, in the root of a checkout with nothing but a revision in it.
    #[arg(long, value_name = "COMMAND")]
    pub build: String,
    /// The module's file in the checkout [default: the only .ko that the build makes].
    #[arg(long, value_name = "FILE")]
    pub module: Option<PathBuf>,
    /// A folder of the driver's git repository.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub repository: PathBuf,
    /// Forget what an earlier bisection of this repository has found.
    #[arg(long)]
    pub start_over: bool,
    /// Handler to judge, by name or glob (repeatable) [default: as for `profiler gate`].
    #[arg(long = "handler", short = 'H', value_name = "NAME|GLOB")]
    pub handlers: Vec<glob::Pattern>,
    /// How much slower makes a revision bad, as for `profiler gate`, such as 'avg=1%' or 'tp50=+5'.
    #[arg(long, value_name = "LIMITS", value_parser = limits)]
    pub max_regression: Option<String>,
    /// Kernel to boot, as for `profiler lab` [default: the version that the driver was built for].
    #[arg(long, value_name = "FILE|FOLDER|VERSION")]
    pub kernel: Option<String>,
    /// Further parameters of the driver, as insmod takes them.
    #[arg(long, value_name = "NAME=VALUE ...", default_value = "")]
    pub module_params: String,
    /// What runs in the guests beside that, and what is kept and said of them.
    #[command(flatten)]
    pub guests: GuestArgs,
}

/// The text of limits, for the gate.
fn limits(text: &str) -> Result<String, String> {
    text.parse::<Limits>().map(|_| text.to_owned())
}
