//! Files and folders, with errors that name them.

use std::fs;
use std::io;
use std::path::Path;

/// The error with what could not be done to which file or folder.
pub fn failed(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot {doing} {}: {error}", path.display()))
}

/// The same of what goes from one place to another.
fn failed_to(doing: &str, from: &Path, to: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let doing = format!("{doing} {} to", from.display());
    move |error| failed(&doing, to)(error)
}

/// Creates a folder and those above it.
///
/// # Errors
/// If it cannot be created.
pub fn create_dir(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder).map_err(failed("create", folder))
}

/// Removes a folder and its content, if it exists.
///
/// # Errors
/// If it cannot be removed.
pub fn remove_dir(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(failed("remove", folder)),
    }
}

/// Reads a file of text.
///
/// # Errors
/// If it cannot be read.
pub fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path).map_err(failed("read", path))
}

/// Writes a file whole.
///
/// # Errors
/// If it cannot be written.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    fs::write(path, content).map_err(failed("write", path))
}

/// Copies a file.
///
/// # Errors
/// If it cannot be read or written.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to).map(drop).map_err(failed_to("copy", from, to))
}

/// Moves a file or a folder.
///
/// # Errors
/// If it cannot be moved.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to).map_err(failed_to("move", from, to))
}
