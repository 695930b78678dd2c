//! Why a run could not begin, ended early, or is not what was asked for.

use super::{Signal, signals::NoSignals};
use crate::kernel::module::ModuleError;
use crate::kernel::target::ResolveError;
use crate::load::ltp::LtpError;
use crate::load_profile::LibraryError;
use crate::probe::ProbeError;

/// Why a run could not begin, ended early, or is not what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A handler cannot be found or measured.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The same, in a module that was loaded anew since its handlers were looked up.
    #[error("module {module} was loaded anew, and {error}")]
    LoadedAnew {
        /// The module.
        module: String,
        /// What happened.
        error: ResolveError,
    },
    /// The module is not loaded.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// Probes could not be attached or read.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The load profile cannot be found or read.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// Signals could not end it.
    #[error(transparent)]
    NoSignals(#[from] NoSignals),
    /// LTP's tests cannot run.
    #[error(transparent)]
    Ltp(#[from] LtpError),
    /// The load profile is for modules that are not loaded.
    #[error(
        "load profile {profile}: none of its modules is loaded ({modules}): insmod one, or name yours with --module"
    )]
    NoModule {
        /// The load profile.
        profile: String,
        /// Its modules.
        modules: String,
    },
    /// Options that do not go together.
    #[error("{0}")]
    Options(String),
    /// A fault of the profiler or of the system.
    #[error("{0}")]
    Internal(String),
    /// A signal ended it.
    #[error("ended by {0}; the report covers the time until then")]
    Signal(Signal),
    /// The driver was replaced or unloaded meanwhile, or between two runs.
    #[error("{0}")]
    DriverReplaced(String),
    /// A load failed.
    #[error("{0}; the report covers what was measured")]
    LoadFailed(String),
    /// Nothing was measured.
    #[error("no handler had a single hit: the warnings above say why that may be")]
    NoHits,
    /// Handlers had fewer hits than the load profile wants.
    #[error("fewer hits than the load profile wants: {0}")]
    FewHits(String),
    /// More calls were lost than allowed.
    #[error(
        "{percent:.2} % of the calls of {handler} were not measured, and --max-loss is {allowed} %: \
         the report says what became of them and what to do"
    )]
    Losses {
        /// The handler that lost most.
        handler: String,
        /// What it lost.
        percent: f64,
        /// `--max-loss`.
        allowed: f64,
    },
}

impl Error {
    /// Whether the module or its handlers are not there: another driver may have them.
    pub(super) fn is_absence(&self) -> bool {
        match self {
            Self::Resolve(error) => !error.machine_lacks_something(),
            Self::NoModule { .. } => true,
            _ => false,
        }
    }
}
