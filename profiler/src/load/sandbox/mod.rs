//! The sandbox of a load: its own user, session, folder and limits, and a clean-up that also happens
//! when the profiler is killed.
//!
//! ```text
//! profiler (client) --stdin: a task; closes to stop--> supervisor -- command and all its descendants
//!                   <--stdout: messages---------------            (process tree)
//! ```
//!
//! | module | job |
//! |---|---|
//! | `client` | the profiler's side: starts a supervisor, stops it, collects its report |
//! | `supervisor` | a process of this program between profiler and command; nothing outlives it |
//! | `protocol` | what the two send each other |
//! | `process_tree` | finds and ends all descendants of a process |
//! | `user`, `cgroup`, `temp_folder` | whom a load runs as, its limits, its folder |
//! | `folder`, `removal`, `trusted_path` | folders that another user can write to, handled safely by root |
//! | `cleanup` | processes that clean up when the profiler ends or dies |
//! | `private_folder` | a folder that one of these removes |
//! | `program` | the profiler's own program, started in the role of one of these processes |

use std::path::PathBuf;

mod cgroup;
mod cleanup;
mod client;
mod folder;
mod private_folder;
mod process_tree;
mod program;
mod protocol;
mod removal;
pub(super) mod supervisor;
mod temp_folder;
mod trusted_path;
mod user;

pub(super) use cgroup::remove as remove_cgroup;
pub use cleanup::CleanupCommand;
pub(super) use cleanup::{
    CleanupProcess, REMOVAL_TIMEOUT, ignore_signals, remove_directory_main, run_command_main,
    wait_for_end_of_input,
};
pub(super) use client::{SupervisedCommand, SupervisorReport};
pub(super) use folder::{Folder, MODE_FOR_ALL, remove_empty, unused_name};
pub use private_folder::PrivateFolder;
pub(super) use process_tree::{Exit, ProcessTree, Subreaper};
pub use program::ProfilerProgram;
pub(super) use program::Role;
pub(super) use protocol::SupervisorMessage;
pub(super) use removal::{empty, remove};
use temp_folder::TempFolder;
pub(crate) use trusted_path::{changeable, make_private, user_cache};
pub use user::{BadUser, LoadUser};

/// How a load is sandboxed. By default it runs as the caller, without limits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SandboxOptions {
    /// The user that it runs as; `None` is the caller.
    pub user: Option<LoadUser>,
    /// Most CPU time it may use, in CPUs, such as 0.5.
    pub cpu_max: Option<f64>,
    /// Most memory it may use, in bytes.
    pub memory_max: Option<u64>,
    /// Where its temporary folder is created; `None` is `TMPDIR` or `/tmp`.
    pub directory: Option<PathBuf>,
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

    /// Where its temporary folder is created: an absolute path, as a command may change its working folder.
    pub(super) fn parent_folder(&self) -> PathBuf {
        let folder = self.directory.clone().unwrap_or_else(std::env::temp_dir);
        std::path::absolute(&folder).unwrap_or(folder)
    }
}

/// The paths of a sandbox that does not exist yet. The process that removes it is started first, with these paths: a profiler
/// that is killed at any moment leaves nothing.
#[derive(Debug)]
pub(super) struct SandboxPlan {
    options: SandboxOptions,
    temp_folder: Option<PathBuf>,
    cgroup: Option<PathBuf>,
}

impl SandboxPlan {
    /// Plans what `options` ask for.
    ///
    /// # Errors
    /// A sentence that says what is missing here, and what to do.
    pub(super) fn new(options: &SandboxOptions, with_temp_folder: bool) -> Result<Self, String> {
        options.other_user()?;
        let limited = options.cpu_max.is_some() || options.memory_max.is_some();
        let in_parent = || options.parent_folder().join(unused_name("profiler-load-"));
        Ok(Self {
            temp_folder: with_temp_folder.then(in_parent),
            cgroup: limited.then(cgroup::plan).transpose()?,
            options: options.clone(),
        })
    }

    pub(super) fn cgroup(&self) -> Option<&PathBuf> {
        self.cgroup.as_ref()
    }
}

/// The temporary folder and the control group of one load. Both are removed when this is dropped, and by
/// the supervisor in case the profiler is killed.
#[derive(Debug, Default)]
pub(super) struct Sandbox {
    cgroup: Option<PathBuf>,
    temp_folder: Option<TempFolder>,
}

impl Sandbox {
    /// Creates what is planned.
    ///
    /// # Errors
    /// A sentence that says what is missing here, and what to do.
    pub(super) fn create(&mut self, plan: SandboxPlan) -> Result<(), String> {
        let SandboxPlan { options, temp_folder, cgroup } = plan;
        if let Some(group) = cgroup {
            // Removed on drop, with limits or without.
            let group = self.cgroup.insert(group);
            cgroup::create(group, options.cpu_max, options.memory_max)?;
        }
        if let Some(path) = temp_folder {
            let folder = TempFolder::create(path, options.other_user()?).map_err(|error| {
                format!("a folder for its files in {}: {error}", options.parent_folder().display())
            })?;
            self.temp_folder = Some(folder);
        }
        Ok(())
    }

    pub(super) fn cgroup(&self) -> Option<&PathBuf> {
        self.cgroup.as_ref()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(cgroup) = &self.cgroup {
            // What remains can only be removed by hand, and no result depends on it.
            let _ = cgroup::remove(cgroup);
        }
        // After the processes that write to it.
        drop(self.temp_folder.take());
    }
}
