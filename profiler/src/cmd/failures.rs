//! Which exit code each error of the layers below ends the program with.

use super::report::ReportError;
use crate::atomic_file::OutputError;
use crate::error::{Failure, exit};
use crate::kernel::module::ModuleError;
use crate::kernel::privileges::MissingCapabilities;
use crate::kernel::target::ResolveError;
use crate::load::ltp::LtpError;
use crate::load_profile::LibraryError;
use crate::probe::ProbeError;
use crate::profile::ReadError;
use crate::trace_cmd::ImportError;

impl From<ResolveError> for Failure {
    fn from(error: ResolveError) -> Self {
        let code =
            if error.machine_lacks_something() { exit::CANNOT_MEASURE } else { exit::NO_TARGET };
        Self::new(code, error.to_string())
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

impl From<MissingCapabilities> for Failure {
    fn from(error: MissingCapabilities) -> Self {
        Self::new(exit::CANNOT_MEASURE, error.to_string())
    }
}

impl From<ModuleError> for Failure {
    fn from(error: ModuleError) -> Self {
        Self::new(exit::NO_TARGET, error.to_string())
    }
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Self {
        Self::new(exit::BAD_OUTPUT, error.to_string())
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Self::new(exit::BAD_INPUT, error.to_string())
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
            LtpError::NoLtp { .. }
            | LtpError::Unreadable { .. }
            | LtpError::BadLine { .. }
            | LtpError::Empty { .. }
            | LtpError::NothingRuns { .. } => exit::BAD_INPUT,
            LtpError::NoSuite { .. }
            | LtpError::BadPattern { .. }
            | LtpError::NoMatch { .. }
            | LtpError::Destructive { .. }
            | LtpError::User(_)
            | LtpError::Runner(_) => exit::USAGE,
        };
        Self::new(code, error.to_string())
    }
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        Self::new(exit::BAD_INPUT, error.to_string())
    }
}

impl From<ReportError> for Failure {
    fn from(error: ReportError) -> Self {
        match error {
            ReportError::Read(error) => error.into(),
            ReportError::Write(_) => Self::new(exit::BAD_OUTPUT, error.to_string()),
        }
    }
}
