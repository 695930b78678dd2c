//! Arguments of `run` for the sandbox of its loads.

use clap::Args;

use crate::load::{LoadUser, SandboxOptions};

/// Limits of a load.
#[derive(Debug, Clone, Args)]
pub struct ConfineArgs {
    /// User that the load runs as [default, as root: nobody for built-in loads that need no
    /// privileges; root for a command and for LTP, many of whose tests need it].
    #[arg(long, value_name = "NAME")]
    pub load_user: Option<LoadUser>,
}

impl ConfineArgs {
    /// The sandbox of a load whose files go below `directory`.
    pub fn sandbox(&self, directory: Option<std::path::PathBuf>) -> SandboxOptions {
        SandboxOptions { user: self.load_user.clone(), directory }
    }
}
