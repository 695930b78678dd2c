//! `profiler restore`: puts back what a killed profiler has left in tracefs, and says nothing where there is nothing.

use std::path::Path;

use crate::error::{Failure, exit};
use crate::probe::keeper;
use crate::terminal::say;

/// See the [command line](crate::cli::Command::Restore).
///
/// # Errors
/// If this is not root, or something of a killed profiler's is left. What one that lives has changed is its own.
pub fn run() -> Result<(), Failure> {
    let failed = |text| Failure::new(exit::CANNOT_MEASURE, text);
    if !nix::unistd::geteuid().is_root() {
        return Err(failed("only root can put tracefs back: run this as root".to_owned()));
    }
    let done = keeper::put_back(Path::new("/"))
        .map_err(|error| failed(format!("tracefs cannot be put back: {error}")))?;
    if !done.is_all {
        return Err(failed(done.text));
    }
    if !done.text.is_empty() {
        say(&done.text);
    }
    Ok(())
}
