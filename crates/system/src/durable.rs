//! Files and folders take another's place so that a power cut leaves the one or the other, whole: what is new is on disk
//! before the rename, and the rename is when these return.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use nix::libc;
use tempfile::NamedTempFile;

/// Moves a temporary file to `target`. What other programs have written to it is synced, too, also if they have replaced it.
///
/// # Errors
/// If it cannot be written or moved.
pub fn persist<F>(file: NamedTempFile<F>, target: &Path) -> io::Result<()> {
    let from = file.path().to_owned();
    durably(&from, target, || file.persist(target).map(drop).map_err(|error| error.error))
}

/// Moves a file or a folder.
///
/// # Errors
/// If it cannot be written or moved.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    durably(from, to, || fs::rename(from, to))
}

fn durably(from: &Path, to: &Path, rename: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // Its mode may allow only the one or the other.
    let new = File::open(from).or_else(|_| OpenOptions::new().append(true).open(from))?;
    if new.metadata()?.is_dir() {
        // A kernel has thousands of files.
        nix::unistd::syncfs(&new)?;
    } else {
        new.sync_all()?;
    }
    rename()?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    match File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()) {
        // Some file systems refuse to sync a folder, and some folders may not be read.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) => Ok(()),
        synced => synced,
    }
}
