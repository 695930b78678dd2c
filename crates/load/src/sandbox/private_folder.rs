//! Folders that are removed however the profiler ends: a subprocess whose standard input is a pipe from the profiler, which the
//! kernel closes even after a SIGKILL, removes them then. It is started before its folder is created.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use tempfile::TempDir;

use super::folder::unused_name;
use super::program::{ProfilerProgram, Role};

/// How long the removal of a folder is tried: processes that write to it are being killed meanwhile.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(30);

/// A subprocess that removes a folder once its standard input is closed. Dropping it closes the input and waits for its end.
#[derive(Debug)]
struct Remover(Child);

impl Remover {
    fn start(folder: &Path, profiler: &ProfilerProgram) -> io::Result<Self> {
        // A process group of its own: Ctrl-C at the terminal must not end it before it has cleaned up.
        let mut command = profiler.command(Role::RemoveDirectory);
        let mut remover = Self(command.process_group(0).stdin(Stdio::piped()).spawn()?);
        if let Some(input) = &mut remover.0.stdin {
            // Every user can read the arguments of a process, and could create a folder named there first.
            input.write_all(folder.as_os_str().as_bytes())?;
        }
        Ok(remover)
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        // It closes the input first.
        let _ = self.0.wait();
    }
}

/// A folder that only this user can access, removed on drop and also when the profiler is killed.
#[derive(Debug)]
pub struct PrivateFolder {
    // Dropped in this order: the clean-up process has nothing to do unless this process is killed.
    folder: TempDir,
    _remover: Option<Remover>,
}

impl PrivateFolder {
    /// Creates one in `parent`, whose name begins with `prefix`.
    ///
    /// # Errors
    /// If it cannot be created, or the process that removes it not be started.
    pub fn new(parent: &Path, prefix: &str, profiler: &ProfilerProgram) -> io::Result<Self> {
        let parent = std::path::absolute(parent)?;
        let name = unused_name(prefix);
        let remover = Remover::start(&parent.join(&name), profiler).map_err(|error| {
            let program = profiler.path().display();
            io::Error::new(error.kind(), format!("the process that removes it, {program}: {error}"))
        })?;
        Ok(Self { folder: create(&parent, &name)?, _remover: Some(remover) })
    }

    /// One on a machine that ends with this process, where nobody has to remove it. Its name is always the same.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(crate) fn unattended(parent: &Path, prefix: &str) -> io::Result<Self> {
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

/// Reads standard input to its end: the end of the profiler, or its request to clean up.
pub(crate) fn wait_for_end_of_input() -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = io::stdin().read_to_end(&mut bytes);
    bytes
}

/// The `main` of [`Role::RemoveDirectory`](super::Role::RemoveDirectory): its input is the path.
pub(crate) fn remove_directory_main() -> i32 {
    // systemd sends SIGTERM to all processes of a unit, and this one has to be the last.
    let _ = SigSet::all().thread_block();
    let directory = PathBuf::from(OsString::from_vec(wait_for_end_of_input()));
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    while let Err(error) = std::fs::remove_dir_all(&directory) {
        match error.kind() {
            io::ErrorKind::NotFound => break,
            // Somebody still writes to it.
            io::ErrorKind::DirectoryNotEmpty if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            _ => return 1,
        }
    }
    0
}
