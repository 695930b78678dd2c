//! The exit codes of the errors of the layers below that have several.

use crate::error::{Failure, exit};
use crate::kernel::target::ResolveError;
use crate::probe::ProbeError;

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
