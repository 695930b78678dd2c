//! What the operations of all built-in loads have in common.

use std::path::Path;

use nix::errno::Errno;
use tempfile::TempDir;

use crate::load::sandbox::{CleanupProcess, ProfilerProgram, Role, unused_name};
use crate::recording::loads::OwnCalls;

/// What all workers of one load share.
pub(super) struct Shared {
    pub(super) directory: Option<PrivateDirectory>,
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

/// A directory that only this user can access, removed on drop and also when the profiler is killed.
pub(super) struct PrivateDirectory {
    // Dropped in this order: the clean-up process has nothing to do unless this process is killed.
    directory: TempDir,
    _cleanup: CleanupProcess,
}

impl PrivateDirectory {
    pub(super) fn new(
        parent: &Path,
        profiler: &ProfilerProgram,
        calls: &mut OwnCalls,
    ) -> Result<Self, String> {
        let name = unused_name("profiler-load-");
        calls.execve += 1;
        // What removes it comes first.
        let mut remover = profiler.command(Role::RemoveDirectory);
        let cleanup = CleanupProcess::start(remover.arg(parent.join(&name)));
        let cleanup = cleanup.map_err(|error| {
            format!(
                "the process that removes its directory, {}: {error}",
                profiler.path().display()
            )
        })?;
        let directory = tempfile::Builder::new().prefix(&name).rand_bytes(0).tempdir_in(parent);
        let directory = directory
            .map_err(|error| format!("a directory for files in {}: {error}", parent.display()))?;
        Ok(Self { directory, _cleanup: cleanup })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}
