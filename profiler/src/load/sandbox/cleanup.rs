//! Subprocesses that clean up when the profiler ends, be it by SIGKILL: their standard input is a pipe
//! from the profiler, which the kernel then closes. Each is started before what it removes is created.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;

use super::program::{ProfilerProgram, Role};

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

    /// Writes `bytes` to its standard input. What is not there yet is named so: every user can read the arguments of a process, and
    /// could be the first to create it.
    pub(super) fn write(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.0.stdin.as_mut().map_or(Ok(()), |input| input.write_all(bytes.as_ref()))
    }

    /// Waits until it has cleaned up. True if it succeeded.
    fn finish(&mut self) -> bool {
        // `wait` closes the input first.
        self.0.wait().is_ok_and(|status| status.success())
    }
}

impl Drop for CleanupProcess {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A command that runs when this is dropped or the profiler is killed.
#[derive(Debug)]
pub struct CleanupCommand(CleanupProcess);

impl CleanupCommand {
    /// Has `command` run with `args` at the end.
    ///
    /// # Errors
    /// If the subprocess that waits for the end cannot be started.
    pub fn new(
        profiler: &ProfilerProgram,
        command: impl Into<OsString>,
        args: impl IntoIterator<Item = OsString>,
    ) -> io::Result<Self> {
        let mut waiting = profiler.command(Role::RunAtExit);
        waiting.arg(command.into()).args(args).stdout(Stdio::null()).stderr(Stdio::null());
        CleanupProcess::start(&mut waiting).map(Self)
    }

    /// A copy of the input that the command waits for the end of: it does not run before this copy is closed, too.
    ///
    /// # Errors
    /// If there is no room for a descriptor.
    pub fn input(&self) -> io::Result<OwnedFd> {
        let input = self.0.0.stdin.as_ref();
        input.ok_or(io::ErrorKind::BrokenPipe)?.as_fd().try_clone_to_owned()
    }

    /// Runs the command now. True if it succeeded.
    #[must_use]
    pub fn run_now(mut self) -> bool {
        self.0.finish()
    }
}

/// Reads standard input to its end: the end of the profiler, or its request to clean up.
pub(in crate::load) fn wait_for_end_of_input() -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = io::stdin().read_to_end(&mut bytes);
    bytes
}

/// Blocks all signals: systemd, for one, sends SIGTERM to all processes of a unit, and what cleans up must be the last.
fn ignore_signals() {
    let _ = SigSet::all().thread_block();
}

/// The `main` of [`Role::RemoveDirectory`]: its input is the path.
pub(in crate::load) fn remove_directory_main() -> i32 {
    ignore_signals();
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

/// The `main` of [`Role::RunAtExit`].
pub(in crate::load) fn run_command_main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let Some(program) = args.next() else { return 2 };
    ignore_signals();
    wait_for_end_of_input();
    let status = Command::new(program).args(args).stdin(Stdio::null()).status();
    status.map_or(1, |status| i32::from(!status.success()))
}
