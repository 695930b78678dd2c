//! Folders that are removed however the profiler ends.

use std::fs::Permissions;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::TempDir;

use super::cleanup::CleanupProcess;
use super::folder::unused_name;
use super::program::{ProfilerProgram, Role};

/// A folder that only this user can access, removed on drop and also when the profiler is killed.
#[derive(Debug)]
pub struct PrivateFolder {
    // Dropped in this order: the clean-up process has nothing to do unless this process is killed.
    folder: TempDir,
    _remover: Option<CleanupProcess>,
}

impl PrivateFolder {
    /// Creates one in `parent`, whose name begins with `prefix`.
    ///
    /// # Errors
    /// If it cannot be created, or the process that removes it not be started.
    pub fn new(parent: &Path, prefix: &str, profiler: &ProfilerProgram) -> io::Result<Self> {
        let parent = std::path::absolute(parent)?;
        let name = unused_name(prefix);
        let of_remover = |error: io::Error| {
            let program = profiler.path().display();
            io::Error::new(error.kind(), format!("the process that removes it, {program}: {error}"))
        };
        let mut remover = profiler.command(Role::RemoveDirectory);
        let mut remover = CleanupProcess::start(&mut remover).map_err(of_remover)?;
        remover.write(parent.join(&name).as_os_str().as_bytes()).map_err(of_remover)?;
        Ok(Self { folder: create(&parent, &name)?, _remover: Some(remover) })
    }

    /// One on a machine that ends with this process, where nobody has to remove it. Its name is always the same.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(in crate::load) fn unattended(parent: &Path, prefix: &str) -> io::Result<Self> {
        Ok(Self { folder: create(parent, prefix)?, _remover: None })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn create(parent: &Path, name: &str) -> io::Result<TempDir> {
    let mut folder = tempfile::Builder::new();
    folder.prefix(name).rand_bytes(0).permissions(Permissions::from_mode(0o700));
    folder.tempdir_in(parent)
}
