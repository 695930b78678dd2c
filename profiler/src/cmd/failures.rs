//! The exit codes of the errors of the layers below that have several.

use crate::error::{Failure, exit};
use crate::probe::ProbeError;

impl From<ProbeError> for Failure {
    fn from(error: ProbeError) -> Self {
        let code = match error {
            ProbeError::ModuleGone { .. } => exit::NO_TARGET,
            _ => exit::CANNOT_MEASURE,
        };
        Self::new(code, error.to_string())
    }
}
