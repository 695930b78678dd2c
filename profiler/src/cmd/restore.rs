//! `profiler restore`: puts back what a killed profiler has left in tracefs, and says nothing where there is nothing.

use std::path::Path;

use crate::error::{Failure, exit};
use crate::probe::keeper;

/// See the [command line](crate::cli::Command::Restore).
///
/// # Errors
/// If something is left.
pub fn run() -> Result<(), Failure> {
    let failed = |text| Failure::new(exit::CANNOT_MEASURE, text);
    match keeper::put_back(Path::new("/")) {
        Ok(Some(recovered)) if !recovered.failed.is_empty() => Err(failed(recovered.to_string())),
        Ok(Some(recovered)) => {
            eprintln!("{recovered}");
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(error) => Err(failed(format!("tracefs cannot be put back: {error}"))),
    }
}
