//! Why a VM gave no result.

use std::io;
use std::path::Path;

/// Why a command in a VM did not run to its end, in words. The log of the VM has all output.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct VmError(pub(crate) String);

impl VmError {
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self(format!("cannot {doing} {}: {error}", path.display()))
    }
}
