//! Changes of the machine that are taken back, whatever becomes of this program.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

use super::HelperProgram;
use super::helper::Role;

/// Runs a command when it is dropped; and, by a process that waits for just that, also when this
/// program is killed.
#[derive(Debug)]
pub struct Undo(Child);

impl Undo {
    /// Has `program` run with `args` at the end.
    ///
    /// # Errors
    /// If the process that waits cannot be started.
    pub fn with(
        helper: &HelperProgram,
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = OsString>,
    ) -> io::Result<Self> {
        let mut command = helper.command(Role::Undo);
        command.arg(program.into()).args(args);
        // Its own group: a Ctrl-C at the terminal must not end it before its work is done.
        // Its own words are not for the user, whom its code tells enough.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self)
    }

    /// Runs the command now. True if it succeeded.
    #[must_use]
    pub fn now(mut self) -> bool {
        // `wait` closes the input, on which the command is run.
        self.0.wait().is_ok_and(|status| status.success())
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let _ = self.0.wait();
    }
}
