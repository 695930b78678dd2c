//! The sandbox of a load: its own user, session, folder and mounts, and a clean-up that also happens
//! when the profiler is killed.
//!
//! ```text
//! profiler (client) --stdin: requests; closes to stop--> supervisor -- command and all its descendants
//!                   <--stdout: messages-----------------            (processes)
//! ```
//!
//! | module | job |
//! |---|---|
//! | `client` | the profiler's side: starts a supervisor, has it run commands, stops it |
//! | `supervisor`, `output` | a process of this program between profiler and command, which makes the sandbox and removes it |
//! | `protocol` | what the two send each other |
//! | `processes` | finds and ends all descendants of a process |
//! | `user`, `folder` | whom a load runs as, its folder |
//! | `trusted_path` | whether others can change where a path leads |
//! | `private_folder` | a folder that a process removes when the profiler ends or dies |
//! | `program` | the profiler's own program, started in the role of one of these processes |

use std::path::PathBuf;
use std::time::Duration;

mod client;
mod folder;
mod output;
mod private_folder;
mod processes;
mod program;
mod protocol;
pub(super) mod supervisor;
mod trusted_path;
mod user;

pub(super) use client::{Supervised, run_once};
pub use private_folder::PrivateFolder;
pub(super) use private_folder::{remove_directory_main, wait_for_end_of_input};
pub use program::ProfilerProgram;
pub(super) use program::Role;
pub(super) use protocol::{CommandKind, CommandRequest, Sandbox, SupervisorMessage};
pub use trusted_path::{make_private, refuse_changeable, user_cache};
pub use user::LoadUser;

/// How a load is sandboxed. By default it runs as the caller.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SandboxOptions {
    /// The user that it runs as; `None` is the caller.
    pub user: Option<LoadUser>,
    /// Where its temporary folder is created; `None` is `TMPDIR` or `/tmp`.
    pub directory: Option<PathBuf>,
    /// The program that supervises it.
    pub profiler: ProfilerProgram,
    /// Time between SIGTERM and SIGKILL; `None` is that of its kind of load.
    pub grace: Option<Duration>,
}

impl SandboxOptions {
    /// The user that it runs as, if not the caller.
    ///
    /// # Errors
    /// If the caller is not root, who alone can change the user.
    pub(super) fn other_user(&self) -> Result<Option<&LoadUser>, String> {
        match self.user.as_ref().filter(|user| !user.is_me()) {
            Some(user) if !nix::unistd::geteuid().is_root() => {
                Err(format!("only root can run a load as `{}`: leave out --load-user", user.name))
            }
            user => Ok(user),
        }
    }
}
