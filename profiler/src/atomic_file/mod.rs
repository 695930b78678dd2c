//! Atomic file replacement: write, sync, rename. Outputs are opened before anything is measured, which shows
//! that they can be written.

mod temporary;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use temporary::Temporary;
pub(crate) use temporary::create as temporary;

/// An output file that is open and not yet written.
///
/// What is written goes to a temporary file beside the target, which takes the target's place in
/// [`OutputFile::commit`]; dropped before that, it leaves the target as it was.
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
    /// With the file that it is to become: links are followed, so that the link stays.
    Replace(Temporary, PathBuf),
}

/// An output file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}: {remedy}", path.display())]
pub struct OutputError {
    /// The file, as the user named it.
    pub path: PathBuf,
    /// The system's reason.
    pub source: io::Error,
    /// What to do.
    pub remedy: &'static str,
}

impl OutputFile {
    /// Opens `path` for output and thereby shows that it can be written. `-` is standard output.
    ///
    /// # Errors
    /// If the target is a folder, or its folder is missing, full or not writable.
    pub fn open(path: &Path) -> Result<Self, OutputError> {
        let sink = open_sink(path).map_err(|source| {
            let remedy = match source.kind() {
                io::ErrorKind::NotFound => "create its folder first",
                io::ErrorKind::IsADirectory => "name a file, not a folder",
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    "choose a place that you may write to"
                }
                io::ErrorKind::StorageFull => "free some space or choose another place",
                _ if source.raw_os_error() == Some(libc::ENXIO) => "start what reads from it first",
                _ => "choose another place",
            };
            OutputError { path: path.to_owned(), source, remedy }
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
    pub fn commit(self, bytes: &[u8]) -> Result<(), OutputError> {
        let Self { path, sink } = self;
        let written = match sink {
            Sink::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(bytes).and_then(|()| stdout.flush())
            }
            Sink::Direct(mut file) => file.write_all(bytes),
            Sink::Replace(file, target) => temporary::replace(file, &target, bytes),
        };
        written.map_err(|source| OutputError {
            path,
            source,
            remedy: "an older file of that name is left as it was; free some space or write elsewhere",
        })
    }
}

/// Removes temporary files that a killed program left in `folder` a minute ago or more.
pub fn remove_stale(folder: &Path) {
    temporary::is_first_visit(folder);
    temporary::remove_left(folder, temporary::YOUNG);
}

/// Saves `bytes`, which could not be written where they should be, in the folder for temporary files;
/// gives the new file. For what took long to measure.
///
/// # Errors
/// If they cannot be written there either.
pub fn rescue(bytes: &[u8]) -> Result<PathBuf, OutputError> {
    let folder = std::env::temp_dir();
    let error =
        |source| OutputError { path: folder.clone(), source, remedy: "free some space there, too" };
    let mut file = tempfile::Builder::new()
        .prefix("profiler-rescued-")
        .suffix(".json")
        .tempfile_in(&folder)
        .map_err(error)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(error)?;
    file.keep().map(|(_, path)| path).map_err(|kept| error(kept.error))
}

fn open_sink(path: &Path) -> io::Result<Sink> {
    if path == Path::new("-") {
        return Ok(Sink::Stdout);
    }
    let old = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let target = match &old {
        Some(metadata) if metadata.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Some(metadata) if !metadata.is_file() => {
            return open_direct(path).map(Sink::Direct);
        }
        Some(_) => fs::canonicalize(path)?,
        None => path.to_owned(),
    };
    if old.is_some() {
        // A file that its owner protected is not replaced behind their back.
        OpenOptions::new().append(true).open(&target)?;
    }
    let folder = match target.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mode = old.map_or(0o666, |metadata| metadata.permissions().mode() & 0o777);
    let file = temporary::create(folder, mode)?;
    Ok(Sink::Replace(file, target))
}

/// Opens what is there without waiting: a FIFO that nobody reads is an error now, not a hang.
fn open_direct(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
    fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(file)
}
