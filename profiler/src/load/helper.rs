//! The small programs that loads need, all inside this one: the program starts itself again with a
//! hidden first argument. So the loads need nothing else installed.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicU64;

use super::{guard, hosted, ltp};

/// First argument of each hidden program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Ends at once: what the `execve` load executes.
    Noop,
    /// Waits to be traced: what the `ptrace` load pokes.
    Tracee,
    /// Removes a directory when its standard input closes.
    DirectoryGuard,
    /// Runs a command and lets nothing of it survive.
    CommandGuard,
    /// Runs tests of LTP and lets nothing of them survive.
    TestAgent,
    /// Clears away what tests of LTP leave in their folder when its standard input closes.
    WorkGuard,
    /// Runs a built-in load.
    Host,
    /// Runs a command when its standard input closes.
    Undo,
}

impl Role {
    const ALL: [Self; 8] = [
        Self::Noop,
        Self::Tracee,
        Self::DirectoryGuard,
        Self::CommandGuard,
        Self::TestAgent,
        Self::WorkGuard,
        Self::Host,
        Self::Undo,
    ];

    pub(super) fn argument(self) -> &'static str {
        match self {
            Self::Noop => "__exec-noop",
            Self::Tracee => "__ptrace-child",
            Self::DirectoryGuard => "__directory-guard",
            Self::CommandGuard => "__command-guard",
            Self::TestAgent => "__test-agent",
            Self::WorkGuard => "__work-guard",
            Self::Host => "__load",
            Self::Undo => "__undo",
        }
    }
}

/// The program that plays the hidden roles: one whose `main` calls [`become_helper_if_asked`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelperProgram(PathBuf);

impl HelperProgram {
    /// The running program itself, found again even when its file was replaced meanwhile.
    #[must_use]
    pub fn this_program() -> Self {
        Self(PathBuf::from("/proc/self/exe"))
    }

    /// The program at `path`. It has to contain a `/`: there is no search in `PATH`.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A command that starts the program in `role`.
    pub(super) fn command(&self, role: Role) -> Command {
        let mut command = Command::new(&self.0);
        command.arg(role.argument());
        command
    }
}

/// Plays a hidden role and exits, if this process was started for one; returns otherwise.
///
/// Call it first thing in `main`, before arguments are parsed and before any thread is there.
pub fn become_helper_if_asked() {
    let mut args = std::env::args_os().skip(1);
    let Some(first) = args.next() else { return };
    let Some(role) = Role::ALL.into_iter().find(|role| first == OsStr::new(role.argument())) else {
        return;
    };
    let code = match role {
        Role::Noop => 0,
        Role::Tracee => be_traced(),
        Role::DirectoryGuard => guard_directory(args.next()),
        Role::CommandGuard => guard::main(args),
        Role::TestAgent => ltp::agent::main(args),
        Role::WorkGuard => ltp::work::guard(args),
        Role::Host => hosted::main(args),
        Role::Undo => undo(args),
    };
    std::process::exit(code);
}

/// What the tracer writes over.
static POKED: AtomicU64 = AtomicU64::new(0);

/// Says where it may be written to, then waits for its end: by a signal, or, when the tracer is gone
/// before it has attached, by the end of its input.
fn be_traced() -> i32 {
    let mut out = std::io::stdout();
    let told = writeln!(out, "{}", POKED.as_ptr() as usize).and_then(|()| out.flush());
    if told.is_err() {
        return 1;
    }
    wait_for_end_of_input();
    0
}

/// Outlives a killed profiler for a moment, so that its files do not.
fn guard_directory(directory: Option<OsString>) -> i32 {
    let Some(directory) = directory else { return 2 };
    wait_for_end_of_input();
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => 1,
        _ => 0,
    }
}

/// Outlives a killed profiler for a moment, to take back what it changed on the machine.
fn undo(mut args: impl Iterator<Item = OsString>) -> i32 {
    let Some(program) = args.next() else { return 2 };
    wait_for_end_of_input();
    let mut command = Command::new(program);
    // Its input, which is at its end, and its output, which nobody reads any more, are not the command's.
    command.args(args).stdin(std::process::Stdio::null());
    command.status().map_or(1, |status| i32::from(!status.success()))
}

fn wait_for_end_of_input() {
    let mut byte = [0];
    while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {}
}
