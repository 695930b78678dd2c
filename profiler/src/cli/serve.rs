//! Arguments of `profiler serve`, `profiler release` and `profiler status`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{PRECISIONS, one_of, one_of_these};
use crate::probe::Precision;
use crate::recording::Backend;
use crate::serve::config;

const SERVE_EXAMPLES: &str = "\
Examples:
  profiler serve --config /etc/profiler/serve.toml
  # is the configuration right? nothing is measured
  profiler serve --config /etc/profiler/serve.toml --check
  # one module, without a file
  profiler serve --module hids_driver --handler '*_handler' --store /srv/profiler";

/// Arguments of `profiler serve`.
#[derive(Debug, Args)]
#[command(after_help = SERVE_EXAMPLES, group = one_of_these("what", &["config", "module"]))]
pub struct ServeArgs {
    /// The configuration; SIGHUP reads it again. Its keys are in docs/serve.md.
    #[arg(long, short, value_name = "FILE")]
    #[arg(conflicts_with_all = ["module", "handlers", "backend", "precision", "listen", "store", "interval", "max_bytes"])]
    pub config: Option<PathBuf>,
    /// Kernel module that holds the handlers; it need not be loaded yet.
    #[arg(long, short, requires = "handlers", value_parser = config::module_name)]
    pub module: Option<String>,
    /// Handler to measure, by name or glob (repeatable).
    #[arg(long = "handler", short = 'H', value_name = "NAME|GLOB")]
    pub handlers: Vec<String>,
    /// The only backend to use [default: for each handler the best that works].
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// Significant decimal digits of the histograms.
    #[arg(long, value_parser = one_of(PRECISIONS), default_value = "2")]
    pub precision: Precision,
    /// Address and port for scrapers, or none [default: 127.0.0.1:9560].
    #[arg(long, value_name = "ADDRESS", value_parser = listen)]
    pub listen: Option<Listen>,
    /// Folder for completed intervals [default: /var/lib/profiler].
    #[arg(long, value_name = "FOLDER")]
    pub store: Option<PathBuf>,
    /// Length of the intervals on disk, 1s to 24h [default: 1m].
    #[arg(long, value_name = "TIME", value_parser = config::interval_length)]
    pub interval: Option<Duration>,
    /// Bytes that all intervals may take; the oldest are removed for new ones [default: 536870912].
    #[arg(long, value_name = "BYTES")]
    pub max_bytes: Option<u64>,
    /// Only check the configuration, and report mistakes.
    #[arg(long)]
    pub check: bool,
}

/// Where scrapers ask, if anywhere.
#[derive(Debug, Clone, Copy)]
pub struct Listen(pub Option<SocketAddr>);

fn listen(text: &str) -> Result<Listen, String> {
    config::listen(text).map(Listen)
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
