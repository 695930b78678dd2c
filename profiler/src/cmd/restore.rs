//! `profiler restore`: puts back what a killed profiler has left in tracefs, and says nothing where there is nothing.

use profiler_base::error::{Failure, bail, exit};

/// See the [command line](crate::cli::Command::Restore).
///
/// # Errors
/// If this is not root, or something of a killed profiler's is left. What one that lives has changed is its own.
pub fn run() -> Result<(), Failure> {
    if !nix::unistd::geteuid().is_root() {
        bail!(CANNOT_MEASURE, "only root can put tracefs back: run this as root");
    }
    super::put_back().map_err(|left| Failure::new(exit::CANNOT_MEASURE, left))
}
