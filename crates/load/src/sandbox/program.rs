//! The profiler's own program, which loads start again as a subprocess: so they need nothing else
//! installed.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What a subprocess does, chosen by a hidden first argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[strum(prefix = "__", serialize_all = "kebab-case")]
pub(crate) enum Role {
    /// Ends at once: what the `execve` load executes.
    ExecNoop,
    /// Waits to be traced: what the `ptrace` load writes to.
    PtraceChild,
    /// Removes a directory, which its standard input names, when that closes.
    RemoveDirectory,
    /// Runs commands in a sandbox, and ends all their descendants.
    Supervisor,
    /// Runs a built-in load.
    Load,
}

impl Role {
    /// The first argument that asks for it.
    pub(crate) fn argument(self) -> &'static str {
        self.into()
    }
}

/// The program that is started as a subprocess: its `main` calls
/// [`run_subprocess_if_asked`](crate::run_subprocess_if_asked).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfilerProgram(PathBuf);

impl Default for ProfilerProgram {
    /// The running program, even if its file has been replaced.
    fn default() -> Self {
        Self(PathBuf::from("/proc/self/exe"))
    }
}

impl ProfilerProgram {
    /// The program at `path`, which has to contain a `/`: `PATH` is not searched.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A command that starts the program in `role`.
    pub(crate) fn command(&self, role: Role) -> Command {
        let mut command = Command::new(&self.0);
        command.arg(role.argument());
        command
    }
}
