//! What a run measures, and how.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::load::ltp::Runner;
use crate::load::{BuiltinKind, Rate, SandboxOptions};
use crate::probe;
use crate::recording::Clock;
use crate::watch::Watched;

/// What a run measures, under which load, and for how long. The default is that of `profiler run`: no handler,
/// no load, ten seconds.
#[derive(Debug, Clone)]
pub struct Options {
    /// Module that holds the handlers; `None` is the kernel image, or what the load profile says.
    pub module: Option<String>,
    /// Names or globs of handlers.
    pub handlers: Vec<String>,
    /// Measure the load and its costs alone.
    pub no_probe: bool,
    /// How the handlers are probed.
    pub probes: probe::Options,
    /// Take 2 digits where histograms of 3 do not fit in memory.
    pub may_coarsen: bool,
    /// What a nanosecond is.
    pub clock: Clock,
    /// Length of the window; `None` is until the load has ended, or ten seconds.
    pub duration: Option<Duration>,
    /// How long the load runs before the window begins.
    pub warmup: Duration,
    /// Length of the pieces that the window is cut into.
    pub interval: Option<Duration>,
    /// How often all is measured.
    pub repeat: u32,
    /// Load profile, by name or file.
    pub profile: Option<String>,
    /// Folders of load profiles that come before all others.
    pub profiles_folders: Vec<PathBuf>,
    /// Command that makes the load.
    pub command: Vec<OsString>,
    /// Built-in loads; without any in it, that of the load profile.
    pub builtin: Option<Vec<BuiltinKind>>,
    /// Operations per second of each built-in load; `None` is as fast as possible.
    pub rate: Option<Rate>,
    /// Threads of each built-in load, or tests of LTP side by side.
    pub workers: Option<u32>,
    /// Keep each of these threads on one CPU.
    pub pin: bool,
    /// Operations of each built-in load in all.
    pub operations: Option<u64>,
    /// LTP's tests.
    pub ltp: Ltp,
    /// What loads are kept to.
    pub sandbox: SandboxOptions,
    /// Whose costs are watched besides the machine's and the profiler's own.
    pub watch: Vec<Watched>,
    /// Time between two samples of the costs.
    pub sample: Option<Duration>,
    /// Largest share of a handler's calls that may be lost, in percent.
    pub max_loss: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            module: None,
            handlers: Vec::new(),
            no_probe: false,
            probes: probe::Options { keeper: true, ..probe::Options::default() },
            may_coarsen: true,
            clock: Clock::Wall,
            duration: None,
            warmup: Duration::ZERO,
            interval: None,
            repeat: 1,
            profile: None,
            profiles_folders: Vec::new(),
            command: Vec::new(),
            builtin: None,
            rate: None,
            workers: None,
            pin: false,
            operations: None,
            ltp: Ltp::default(),
            sandbox: SandboxOptions::default(),
            watch: Vec::new(),
            sample: None,
            max_loss: 0.1,
        }
    }
}

/// Which tests of LTP are the load; see [`LtpOptions`](crate::load::ltp::LtpOptions).
#[derive(Debug, Clone)]
pub struct Ltp {
    /// List of tests; `None` is the load profile's.
    pub suite: Option<String>,
    /// Regular expression for their names.
    pub tests: Option<String>,
    /// Regular expression for the names of tests that are left out.
    pub skip: Option<String>,
    /// Where LTP is installed.
    pub root: Option<PathBuf>,
    /// What runs the tests.
    pub runner: Option<Runner>,
    /// Time after which one test is killed.
    pub time_limit: Duration,
    /// Rounds through the list.
    pub iterations: Option<u64>,
    /// Whether tests may run that are known to harm the machine.
    pub allow_destructive: bool,
}

impl Default for Ltp {
    fn default() -> Self {
        Self {
            suite: None,
            tests: None,
            skip: None,
            root: None,
            runner: None,
            time_limit: Duration::from_secs(300),
            iterations: None,
            allow_destructive: false,
        }
    }
}
