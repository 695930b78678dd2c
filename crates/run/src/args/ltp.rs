//! Arguments of `profiler run` that choose a load profile and the tests of LTP.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// Load profiles and LTP.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load profiles and LTP")]
pub struct LtpArgs {
    /// Load profile, by name or file: its handlers under LTP's tests, or with a bare --builtin under
    /// its built-in load; one made of parts runs them one after the other. `profiler profiles` lists them.
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["handlers", "load"])]
    pub profile: Option<String>,
    /// Folder of load profiles that is searched before all others (repeatable).
    #[arg(long = "profiles-dir", value_name = "DIR", requires = "profile")]
    pub profiles_folders: Vec<PathBuf>,
    /// List of tests in LTP's runtest folder, as the load or instead of the load profile's.
    #[arg(long = "ltp-suite", value_name = "SUITE", conflicts_with_all = ["builtin", "load"])]
    pub suite: Option<String>,
    /// Run only tests whose name this regular expression matches.
    #[arg(long = "ltp-tests", value_name = "PATTERN", conflicts_with_all = ["builtin", "load"])]
    pub tests: Option<String>,
    /// Leave out tests whose name this regular expression matches.
    #[arg(long = "ltp-skip", value_name = "PATTERN", conflicts_with_all = ["builtin", "load"])]
    pub skip: Option<String>,
    /// Where LTP is installed [default: LTPROOT, or /opt/ltp].
    #[arg(long = "ltp-root", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Timeout of one test, after which it is killed.
    #[arg(long = "ltp-timeout", value_name = "TIME", value_parser = super::length, default_value = "5m")]
    pub time_limit: Duration,
    /// Rounds through the list of tests [default: 1, or with --duration as many as fit].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: Option<u64>,
    /// Also run tests known to harm the machine: that set its clock, use up its memory, crash it.
    #[arg(long)]
    pub allow_destructive: bool,
}
