//! What the operations of all built-in loads have in common.

use nix::errno::Errno;

use crate::load::sandbox::PrivateFolder;
use crate::recording::loads::OwnCalls;

/// What all workers of one load share.
pub(super) struct Shared {
    pub(super) directory: Option<PrivateFolder>,
}

/// Makes the operations of one thread.
pub(super) trait Worker {
    /// Makes what the next operation needs. Its time is not measured, and at a fixed rate it is called
    /// before the operation is due.
    fn prepare(&mut self, _calls: &mut OwnCalls) -> Result<(), OperationError> {
        Ok(())
    }

    /// Makes one operation and adds its system calls to `calls`, successful or not.
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError>;
}

/// One operation that failed.
#[derive(Debug)]
pub(super) struct OperationError {
    /// What errors are counted by.
    pub(super) kind: String,
    pub(super) text: String,
}

impl OperationError {
    pub(super) fn new(doing: &str, errno: Errno) -> Self {
        Self { kind: format!("{errno:?}"), text: format!("{doing}: {}", errno.desc()) }
    }

    pub(super) fn of_io(doing: &str, error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::new(doing, Errno::from_raw(errno)),
            None => Self { kind: format!("{:?}", error.kind()), text: format!("{doing}: {error}") },
        }
    }
}
