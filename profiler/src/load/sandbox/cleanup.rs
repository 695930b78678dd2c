//! Subprocesses that clean up when the profiler ends, even by SIGKILL: their standard input is a pipe
//! from the profiler, which the kernel then closes. Each is started before what it removes is created.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;

/// How long the removal of a folder is tried: processes that write to it are being killed meanwhile.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(30);

/// A subprocess that cleans up once its standard input is closed. Dropping it closes the input and waits
/// for the end of the clean-up.
#[derive(Debug)]
pub(super) struct CleanupProcess(Child);

impl CleanupProcess {
    /// Starts `command`.
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        // A process group of its own: Ctrl-C at the terminal must not end it before it has cleaned up.
        command.process_group(0).stdin(Stdio::piped()).spawn().map(Self)
    }

    /// Writes `bytes` to its standard input: every user can read the arguments of a process, and could create a folder named there
    /// first.
    pub(super) fn write(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.0.stdin.as_mut().map_or(Ok(()), |input| input.write_all(bytes.as_ref()))
    }
}

impl Drop for CleanupProcess {
    fn drop(&mut self) {
        // It closes the input first.
        let _ = self.0.wait();
    }
}

/// Reads standard input to its end: the end of the profiler, or its request to clean up.
pub(in crate::load) fn wait_for_end_of_input() -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = io::stdin().read_to_end(&mut bytes);
    bytes
}

/// The `main` of [`Role::RemoveDirectory`](super::Role::RemoveDirectory): its input is the path.
pub(in crate::load) fn remove_directory_main() -> i32 {
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
