//! The exit code of each error of the layers below.

use crate::atomic_file::OutputError;
use crate::error::{Failure, exit};
use crate::kernel::module::ModuleError;
use crate::kernel::target::ResolveError;
use crate::probe::ProbeError;
use crate::toml_file::{BadToml, TomlFileError};

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
    BadToml => BAD_INPUT,
    ModuleError => NO_TARGET,
    OutputError => BAD_OUTPUT,
    TomlFileError => BAD_INPUT
);

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
