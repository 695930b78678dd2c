//! The exit code of each error of the layers below.

use crate::atomic_file::OutputError;
use crate::error::{Failure, exit};
use crate::explain::Refusal;
use crate::kernel::module::ModuleError;
use crate::kernel::target::ResolveError;
use crate::load::ltp::LtpError;
use crate::load_profile::LibraryError;
use crate::probe::ProbeError;
use crate::recording::ReadError;
use crate::run::{self, Signal};
use crate::serve::{
    self,
    control::{AskError, ControlError},
};

/// Error types with one exit code each.
macro_rules! of_one_code {
    ($($error:ty => $code:ident),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::new(exit::$code, error.to_string())
            }
        }
    )*};
}

of_one_code!(
    ModuleError => NO_TARGET,
    OutputError => BAD_OUTPUT,
    ReadError => BAD_INPUT
);

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        let code = match error {
            AskError::NoDaemon => exit::NO_TARGET,
            AskError::NotRoot => exit::CANNOT_MEASURE,
            AskError::Refused { code, .. } => code,
            AskError::NoAnswer(_) | AskError::Late => exit::INTERNAL,
        };
        Self::new(code, error.to_string())
    }
}

impl From<ResolveError> for Failure {
    fn from(error: ResolveError) -> Self {
        let code =
            if error.machine_lacks_something() { exit::CANNOT_MEASURE } else { exit::NO_TARGET };
        Self::new(code, error.to_string())
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::NoTree(_) | Refusal::TooMany(_) => exit::BAD_INPUT,
            Refusal::NoSuchHandler { .. } => exit::NO_TARGET,
            Refusal::NothingInCommon(_) => exit::NOT_COMPARABLE,
        };
        Self::new(code, refusal.to_string())
    }
}

impl From<ProbeError> for Failure {
    fn from(error: ProbeError) -> Self {
        let code = match error {
            ProbeError::ModuleGone { .. } => exit::NO_TARGET,
            _ => exit::CANNOT_MEASURE,
        };
        Self::new(code, error.to_string())
    }
}

impl From<LibraryError> for Failure {
    fn from(error: LibraryError) -> Self {
        let code = match error {
            LibraryError::NotFound { .. } => exit::USAGE,
            _ => exit::BAD_INPUT,
        };
        Self::new(code, error.to_string())
    }
}

impl From<LtpError> for Failure {
    fn from(error: LtpError) -> Self {
        let code = match error {
            LtpError::BadLtp(_) => exit::BAD_INPUT,
            LtpError::BadChoice(_) => exit::USAGE,
        };
        Self::new(code, error.to_string())
    }
}

impl From<run::Error> for Failure {
    fn from(error: run::Error) -> Self {
        let message = error.to_string();
        let code = match error {
            run::Error::Resolve(error) | run::Error::LoadedAnew { error, .. } => {
                Self::from(error).code
            }
            run::Error::Module(error) => Self::from(error).code,
            run::Error::Probe(error) => Self::from(error).code,
            run::Error::Library(error) => Self::from(error).code,
            run::Error::Ltp(error) => Self::from(error).code,
            run::Error::NoModule { .. } => exit::NO_TARGET,
            run::Error::Options(_) => exit::USAGE,
            run::Error::Internal(_) | run::Error::NoSignals(_) => exit::INTERNAL,
            run::Error::Signal(signal) => of_signal(signal),
            run::Error::DriverReplaced(_) => exit::DRIVER_REPLACED,
            run::Error::LoadFailed(_) => exit::LOAD_FAILED,
            run::Error::NoHits => exit::NO_HITS,
            run::Error::FewHits(_) => exit::FEW_HITS,
            run::Error::Losses { .. } => exit::LOSSES,
        };
        Self { code, message }
    }
}

/// The exit code after a signal.
pub(super) fn of_signal(signal: Signal) -> u8 {
    match signal {
        Signal::Interrupt => exit::INTERRUPTED,
        Signal::Terminate => exit::TERMINATED,
        Signal::Hangup => exit::HUNG_UP,
    }
}

impl From<serve::Error> for Failure {
    fn from(error: serve::Error) -> Self {
        let code = match &error {
            serve::Error::Config(_) => exit::BAD_INPUT,
            serve::Error::Control(ControlError::Running(_))
            | serve::Error::Listen { .. }
            | serve::Error::Rights(_) => exit::CANNOT_MEASURE,
            serve::Error::Control(ControlError::Io { .. }) | serve::Error::Store(_) => {
                exit::BAD_OUTPUT
            }
            serve::Error::NoEvents(_) | serve::Error::System { .. } => exit::INTERNAL,
        };
        Self::new(code, error.to_string())
    }
}
