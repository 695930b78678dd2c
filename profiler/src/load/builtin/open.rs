//! Creation of files, in a directory that does not outlive the load.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Stdio};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use tempfile::TempDir;

use super::{HelperProgram, OperationError, OwnCalls, Shared, Worker};
use crate::load::helper::Role;

/// A directory with access for this user alone. It is removed on drop and, by a guard process, also when
/// the profiler is killed.
pub(super) struct PrivateDirectory {
    // Dropped in this order: the guard's input closes only when the directory is gone.
    directory: TempDir,
    _guard: Guard,
}

/// A child that is waited for on drop; its input closes just before that.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // `wait` closes the input, on which the guard ends.
        let _ = self.0.wait();
    }
}

impl PrivateDirectory {
    pub(super) fn new(
        within: &Path,
        helper: &HelperProgram,
        calls: &mut OwnCalls,
    ) -> Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("profiler-load-").tempdir_in(within);
        let directory = directory
            .map_err(|error| format!("a directory for files in {}: {error}", within.display()))?;
        let mut command = helper.command(Role::DirectoryGuard);
        command.arg(directory.path()).stdin(Stdio::piped());
        calls.execve += 1;
        let guard = command.spawn().map_err(|error| {
            format!("the guard of its directory, {}: {error}", helper.path().display())
        })?;
        Ok(Self { directory, _guard: Guard(guard) })
    }
}

pub(super) struct Create {
    directory: OwnedFd,
    /// Each worker has its own name, and takes it again for each new file: the names that the kernel
    /// remembers do not grow.
    name: CString,
}

impl Create {
    pub(super) fn new(shared: &Shared, index: u32) -> Result<Self, String> {
        let directory = shared.directory.as_ref().ok_or("it has no directory")?.directory.path();
        let name = CString::new(format!("worker-{index}")).map_err(|error| error.to_string())?;
        let opened = File::open(directory);
        let opened = opened.map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(Self { directory: opened.into(), name })
    }
}

impl Worker for Create {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        let error = |doing| move |errno: Errno| OperationError::new(doing, errno);
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        calls.open_create += 1;
        let file = openat(self.directory.as_fd(), self.name.as_c_str(), flags, Mode::S_IRUSR)
            .map_err(error("create a file"))?;
        drop(file);
        unlinkat(self.directory.as_fd(), self.name.as_c_str(), UnlinkatFlags::NoRemoveDir)
            .map_err(error("unlink the file"))
    }
}
