//! Temporary files that replace their target by a rename, and removal of those that killed programs left.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use profiler_vm::durable;
use tempfile::NamedTempFile;

const PREFIX: &str = ".profiler-";
const SUFFIX: &str = ".tmp";

/// A file younger than that may be one whose program has not locked it yet.
pub(super) const YOUNG: Duration = Duration::from_secs(60);

/// A file that is to take the place of another in its folder. It is locked as long as its program
/// lives, which is how others know.
pub(crate) type Temporary = NamedTempFile<Flock<File>>;

/// A new one in `folder`; the first time after those that nobody holds any more have been removed.
pub(crate) fn create(folder: &Path, mode: u32) -> io::Result<Temporary> {
    if is_first_visit(folder) {
        remove_left(folder, YOUNG);
    }
    tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).make_in(folder, |name| {
        // Not tempfile's 0600: the umask decides, as for any other output.
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(name)?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
            let _ = fs::remove_file(name);
            errno.into()
        })
    })
}

/// Puts `bytes` in the place of `target`, on disk when this returns.
pub(super) fn replace(file: Temporary, target: &Path, bytes: &[u8]) -> io::Result<()> {
    (&**file.as_file()).write_all(bytes)?;
    durable::persist(file, target)
}

/// Whether this process sees `folder` for the first time. Programs are killed rarely, and to read a folder of many intervals
/// takes longer than to write one.
pub(super) fn is_first_visit(folder: &Path) -> bool {
    static VISITED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    VISITED.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned())
}

/// Removes temporary files that a killed program has left in `folder`: nobody has them locked, and
/// they are at least that old.
pub(super) fn remove_left(folder: &Path, age: Duration) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours =
            name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        let path = entry.path();
        if is_ours && let Some(_lock) = left(&path, age) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// The file `path` with a lock, if it was left. In a folder of all users it may be anything at any moment, so that only what
/// is open is looked at.
fn left(path: &Path, age: Duration) -> Option<Flock<File>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok().filter(fs::Metadata::is_file)?;
    if metadata.modified().ok()?.elapsed().ok()? < age {
        return None;
    }
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_program_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let held = create(folder.path(), 0o600).unwrap();
        for name in [".profiler-abc.tmp", ".profiler-abc", "profiler-abc.tmp"] {
            fs::write(at(name), "x").unwrap();
        }
        fs::create_dir(at(".profiler-folder.tmp")).unwrap();
        std::os::unix::fs::symlink("profiler-abc.tmp", at(".profiler-link.tmp")).unwrap();
        remove_left(folder.path(), YOUNG);
        assert!(at(".profiler-abc.tmp").exists(), "it is young");
        remove_left(folder.path(), Duration::ZERO);
        assert!(!at(".profiler-abc.tmp").exists());
        assert!(held.path().exists(), "its program lives");
        for name in
            [".profiler-abc", "profiler-abc.tmp", ".profiler-folder.tmp", ".profiler-link.tmp"]
        {
            assert!(at(name).exists(), "{name} is none of ours");
        }
    }

    /// A FIFO that nobody writes to, in the place of a file that was there when the folder was read.
    #[test]
    fn a_fifo_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join(".profiler-abc.tmp");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(left(&fifo, Duration::ZERO).is_none()));
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true));
    }

    #[test]
    fn the_lock_ends_with_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let (_, path) = create(folder.path(), 0o600).unwrap().keep().unwrap();
        remove_left(folder.path(), Duration::ZERO);
        assert!(!path.exists());
    }
}
