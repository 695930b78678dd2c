//! Subprocesses that clean up when the profiler ends, be it by SIGKILL: their standard input is a pipe
//! from the profiler, which the kernel then closes.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use super::program::{ProfilerProgram, Role};

/// A subprocess that cleans up once its standard input is closed. Dropping it closes the input and waits
/// for the end of the clean-up.
#[derive(Debug)]
pub(in crate::load) struct CleanupProcess(Child);

impl CleanupProcess {
    /// Starts `command`.
    pub(in crate::load) fn start(command: &mut Command) -> io::Result<Self> {
        // A process group of its own: Ctrl-C at the terminal must not end it before it has cleaned up.
        command.process_group(0).stdin(Stdio::piped()).spawn().map(Self)
    }

    /// Writes `text` to its standard input.
    pub(in crate::load) fn write(&mut self, text: &str) -> io::Result<()> {
        self.0.stdin.as_mut().map_or(Ok(()), |input| input.write_all(text.as_bytes()))
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

    /// Runs the command now. True if it succeeded.
    #[must_use]
    pub fn run_now(mut self) -> bool {
        self.0.finish()
    }
}

/// Reads standard input to its end: the end of the profiler, or its request to clean up.
pub(in crate::load) fn wait_for_end_of_input() -> String {
    let mut text = Vec::new();
    let _ = io::stdin().read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// The `main` of [`Role::RemoveDirectory`].
pub(in crate::load) fn remove_directory_main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let Some(directory) = args.next() else { return 2 };
    wait_for_end_of_input();
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => 1,
        _ => 0,
    }
}

/// The `main` of [`Role::RunAtExit`].
pub(in crate::load) fn run_command_main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let Some(program) = args.next() else { return 2 };
    wait_for_end_of_input();
    let status = Command::new(program).args(args).stdin(Stdio::null()).status();
    status.map_or(1, |status| i32::from(!status.success()))
}
