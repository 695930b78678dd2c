//! Atomic file replacement: write, sync, rename. Outputs are opened before anything is measured, which shows
//! that they can be written.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tempfile::NamedTempFile;

use profiler_system::durable;

use crate::error::{Failure, exit};

const PREFIX: &str = ".profiler-";
const SUFFIX: &str = ".tmp";

/// A temporary file that is older was left by a killed program.
const STALE: Duration = Duration::from_secs(60);

/// An output file that is open and not yet written.
///
/// What is written goes to a temporary file beside the target, which takes the target's place in
/// [`OutputFile::commit`]. Until then nothing has a name: a program that is killed leaves the target as it was, and nothing beside it.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    Stdout,
    /// A device, FIFO or the like, which cannot be replaced.
    Direct(File),
    /// A file of this mode in this folder. Links are followed, so that the link stays.
    Replace {
        target: PathBuf,
        folder: PathBuf,
        mode: u32,
    },
}

impl OutputFile {
    /// Opens `path` for output and thereby shows that it can be written. `-` is standard output.
    ///
    /// # Errors
    /// If the target is a folder, or its folder is missing, full or not writable.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let sink = open_sink(path).map_err(|error| {
            let remedy = match error.kind() {
                io::ErrorKind::NotFound => "create its folder first",
                io::ErrorKind::IsADirectory => "name a file, not a folder",
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    "choose a place that you may write to"
                }
                io::ErrorKind::StorageFull => "free some space or choose another place",
                _ if error.raw_os_error() == Some(libc::ENXIO) => "start what reads from it first",
                _ => "choose another place",
            };
            unwritable(path, &error, remedy)
        })?;
        Ok(Self { path: path.to_owned(), sink })
    }

    /// The target, as it was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this goes to standard output.
    pub fn is_stdout(&self) -> bool {
        matches!(self.sink, Sink::Stdout)
    }

    /// Writes `bytes` and makes them the target's content, on disk when this returns.
    ///
    /// # Errors
    /// If that fails: a target that was there before is then still whole.
    pub fn commit(self, bytes: &[u8]) -> Result<(), Failure> {
        let written = match self.sink {
            Sink::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(bytes).and_then(|()| stdout.flush())
            }
            Sink::Direct(mut file) => file.write_all(bytes),
            Sink::Replace { target, folder, mode } => {
                temporary(&folder, mode).and_then(|mut file| {
                    file.as_file_mut().write_all(bytes)?;
                    durable::persist(file, &target)
                })
            }
        };
        let remedy =
            "an older file of that name is left as it was; free some space or write elsewhere";
        written.map_err(|error| unwritable(&self.path, &error, remedy))
    }
}

fn unwritable(path: &Path, error: &io::Error, remedy: &str) -> Failure {
    let text = format!("cannot write {}: {error}: {remedy}", path.display());
    Failure::new(exit::BAD_OUTPUT, text)
}

/// A file in `folder` that is to take the place of another there; the umask applies to `mode`.
pub fn temporary(folder: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let mode = Permissions::from_mode(mode);
    tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).permissions(mode).tempfile_in(folder)
}

/// Removes temporary files that a killed program left in `folder`, which nobody else writes to.
pub fn remove_stale(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours =
            name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        let changed = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = changed.and_then(|changed| changed.elapsed().ok());
        if is_ours && age.is_some_and(|age| age >= STALE) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Saves `bytes`, which could not be written where they should be, in the folder for temporary files;
/// gives the new file. For what took long to measure.
///
/// # Errors
/// If they cannot be written there either.
pub fn rescue(bytes: &[u8]) -> Result<PathBuf, Failure> {
    let folder = std::env::temp_dir();
    rescue_in(&folder, bytes)
        .map_err(|error| unwritable(&folder, &error, "free some space there, too"))
}

fn rescue_in(folder: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let mut builder = tempfile::Builder::new();
    let mut file = builder.prefix("profiler-rescued-").suffix(".json").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    Ok(file.keep()?.1)
}

fn open_sink(path: &Path) -> io::Result<Sink> {
    if path == Path::new("-") {
        return Ok(Sink::Stdout);
    }
    let (target, mode) = match fs::metadata(path) {
        Ok(old) if old.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(old) if !old.is_file() => return open_direct(path).map(Sink::Direct),
        Ok(old) => {
            // A file that its owner protected is not replaced behind their back.
            OpenOptions::new().append(true).open(path)?;
            (fs::canonicalize(path)?, old.permissions().mode() & 0o777)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => (path.to_owned(), 0o666),
        Err(error) => return Err(error),
    };
    let folder = match target.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // Without a name.
    tempfile::tempfile_in(folder)?;
    let folder = folder.to_owned();
    Ok(Sink::Replace { target, folder, mode })
}

/// Opens what is there without waiting: a FIFO that nobody reads is an error now, not a hang.
fn open_direct(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
    fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn what_a_killed_program_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let others = [".profiler-abc", "profiler-abc.tmp"];
        for name in [".profiler-abc.tmp"].into_iter().chain(others) {
            let file = File::create(at(name)).unwrap();
            file.set_modified(SystemTime::now() - STALE).unwrap();
        }
        fs::create_dir(at(".profiler-folder.tmp")).unwrap();
        let young = temporary(folder.path(), 0o600).unwrap();
        remove_stale(folder.path());
        assert!(!at(".profiler-abc.tmp").exists());
        assert!(young.path().exists(), "its program may be alive");
        for name in others.into_iter().chain([".profiler-folder.tmp"]) {
            assert!(at(name).exists(), "{name} is none of ours");
        }
    }
}
