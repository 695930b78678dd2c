//! Arguments of `profiler serve`, `profiler release` and `profiler status`.

use std::path::PathBuf;

use clap::Args;

const SERVE_EXAMPLES: &str = "\
Examples:
  profiler serve --config /etc/profiler/serve.toml
  # is the configuration right? nothing is measured
  profiler serve --config /etc/profiler/serve.toml --check";

/// Arguments of `profiler serve`.
#[derive(Debug, Args)]
#[command(after_help = SERVE_EXAMPLES)]
pub struct ServeArgs {
    /// The configuration; SIGHUP reads it again. Its keys are in docs/serve.md.
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Only check the configuration, and report mistakes.
    #[arg(long)]
    pub check: bool,
}

const RELEASE_EXAMPLES: &str = "\
Examples:
  # a new build of the driver: the daemon measures it as soon as it is loaded
  profiler release hids_driver && rmmod hids_driver && insmod hids_driver.btf.ko
  # the old one stays after all
  profiler release --resume hids_driver";

/// Arguments of `profiler release`.
#[derive(Debug, Args)]
#[command(after_help = RELEASE_EXAMPLES)]
pub struct ReleaseArgs {
    /// The module.
    #[arg(value_name = "MODULE")]
    pub module: String,
    /// Measure it again although it was not unloaded.
    #[arg(long)]
    pub resume: bool,
    /// Print nothing but errors.
    #[arg(long, short)]
    pub quiet: bool,
}

const STATUS_EXAMPLES: &str = "\
Examples:
  profiler status
  # for a script
  profiler status --json";

/// Arguments of `profiler status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_EXAMPLES)]
pub struct StatusArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
