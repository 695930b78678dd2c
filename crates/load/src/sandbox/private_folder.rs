//! Folders that are removed however the profiler ends: a subprocess whose standard input is a pipe from the profiler, which the
//! kernel closes even after a SIGKILL, removes them then. It is started before its folder is created.

use std::ffi::OsString;
use std::fs::{DirBuilder, remove_dir_all};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;

use super::folder::{of_entry, unused_name};
use super::program::{ProfilerProgram, Role};

/// How long the removal of a folder is tried: processes that write to it are being killed meanwhile.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(30);

/// A folder that only this user can access, removed on drop and also when the profiler is killed.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    /// Removes it once its standard input is closed. It has nothing to do unless this process is killed.
    remover: Option<Child>,
}

impl PrivateFolder {
    /// Creates one in `parent`, whose name begins with `prefix`.
    ///
    /// # Errors
    /// If it cannot be created, or the process that removes it not be started.
    pub fn new(parent: &Path, prefix: &str, profiler: &ProfilerProgram) -> io::Result<Self> {
        let path = std::path::absolute(parent)?.join(unused_name(prefix));
        // A process group of its own: Ctrl-C at the terminal must not end it before it has cleaned up.
        let mut command = profiler.command(Role::RemoveDirectory);
        command.process_group(0).stdin(Stdio::piped());
        let of_remover = |error: io::Error| {
            let program = profiler.path().display();
            io::Error::new(error.kind(), format!("the process that removes it, {program}: {error}"))
        };
        let remover = command.spawn().map_err(of_remover)?;
        let mut this = Self { path, remover: Some(remover) };
        if let Some(input) = this.remover.as_mut().and_then(|remover| remover.stdin.as_mut()) {
            // Every user can read the arguments of a process, and could create a folder named there first.
            input.write_all(this.path.as_os_str().as_bytes()).map_err(of_remover)?;
        }
        create(&this.path)?;
        Ok(this)
    }

    /// One on a machine that ends with this process, where nobody has to remove it. Its name is always the same.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(crate) fn unattended(parent: &Path, name: &str) -> io::Result<Self> {
        let path = parent.join(name);
        create(&path)?;
        Ok(Self { path, remover: None })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = remove_dir_all(&self.path);
        if let Some(remover) = &mut self.remover {
            // It closes the input first.
            let _ = remover.wait();
        }
    }
}

fn create(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path).map_err(|error| of_entry(path, &error, ""))
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
    while let Err(error) = remove_dir_all(&directory) {
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
