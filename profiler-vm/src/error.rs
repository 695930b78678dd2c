//! Why a VM gave no result.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::console::Trouble;

/// Why a command in a VM did not run to its end. The log of the VM has all output.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The specification contradicts itself.
    #[error("virtual time needs one CPU, not {0}")]
    VirtualTimeNeedsOneCpu(u32),
    /// A file of the VM's own could not be written, read or made.
    #[error("cannot {doing} {}: {error}", path.display())]
    File {
        /// What was to be done with it.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// virtme-ng could not be started.
    #[error("cannot run `{command}`: {error}")]
    NotStarted {
        /// The whole command.
        command: String,
        /// What the system said.
        error: io::Error,
    },
    /// No handler for Ctrl-C, SIGTERM and SIGHUP could be set, so the VM could outlive this process.
    #[error("cannot handle Ctrl-C, SIGTERM and SIGHUP: {0}")]
    Signals(io::Error),
    /// Ctrl-C, SIGTERM or SIGHUP: the VM was stopped.
    #[error("interrupted by {}: the VM was stopped", signal_name(*.0))]
    Interrupted(i32),
    /// The kernel reported that it is broken.
    #[error("the kernel is in trouble: {trouble}")]
    Trouble {
        /// The line, and the report that followed it.
        trouble: Trouble,
    },
    /// The VM was stopped at its time limit.
    #[error("{} within {} s", if *.started { "the command did not end" } else { "no boot" }, limit.as_secs())]
    TimedOut {
        /// Whether the command had started.
        started: bool,
        /// The limit.
        limit: Duration,
        /// The last lines of the kernel and of the command.
        last: Vec<String>,
    },
    /// The VM ended before the command did.
    #[error(
        "the VM ended before the command {}\n{}",
        if *.started { "did" } else { "started" },
        last.join("\n")
    )]
    Ended {
        /// Whether the command had started.
        started: bool,
        /// The last lines of the kernel.
        last: Vec<String>,
    },
}

impl VmError {
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::File { doing, path, error }
    }
}

fn signal_name(number: i32) -> &'static str {
    nix::sys::signal::Signal::try_from(number).map_or("a signal", nix::sys::signal::Signal::as_str)
}
