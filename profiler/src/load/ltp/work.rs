//! The private folder of a load of LTP: tests make their files, mounts and loop devices below it, and all of
//! that is gone after the load, also when the profiler was killed.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

use crate::load::HelperProgram;
use crate::load::confine::{Confinement, Enclosure, LoadUser, give_to, remove_group};
use crate::load::helper::Role;
use crate::load::sys;

/// How long the guard of a dead profiler tries: what used the folder is being killed meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

/// The folder, with a process that clears it away should the profiler be killed.
pub(super) struct WorkFolder {
    // Dropped in this order: the guard's input closes only when the folder is gone.
    folder: Option<TempDir>,
    /// Whose the tests' own folders are.
    user: Option<LoadUser>,
    _guard: Guard,
}

/// A child that is waited for on drop; its input closes just before that.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // `wait` closes the input, on which the guard ends.
        let _ = self.0.wait();
    }
}

impl WorkFolder {
    /// A new folder where `confinement` wants it, that every user may write to: tests change users. The
    /// process that clears it away removes the control group of `enclosure`, too.
    pub(super) fn new(
        confinement: &Confinement,
        enclosure: &Enclosure,
        helper: &HelperProgram,
    ) -> Result<Self, String> {
        let parent = confinement.directory.clone().unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::Builder::new().prefix("profiler-ltp-").tempdir_in(&parent);
        let folder = folder
            .map_err(|error| format!("a folder for the tests in {}: {error}", parent.display()))?;
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o1777));
        open(folder.path()).map_err(|error| format!("{}: {error}", folder.path().display()))?;
        let mut command = helper.command(Role::WorkGuard);
        command.arg(folder.path()).args(&enclosure.group).stdin(Stdio::piped());
        own_group(&mut command);
        let guard = command.spawn().map_err(|error| {
            format!("the guard of the tests' folder, {}: {error}", helper.path().display())
        })?;
        let user = confinement.user.clone();
        Ok(Self { folder: Some(folder), user, _guard: Guard(guard) })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new("/nonexistent"), TempDir::path)
    }

    /// Empties the folder `name` below it, or makes it: each test begins with nothing.
    pub(super) fn fresh(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.path().join(name);
        let fail = |error: io::Error| format!("{}: {error}", path.display());
        if path.exists() {
            clear(&path).map_err(fail)?;
        }
        fs::create_dir(&path).map_err(fail)?;
        self.hand_over(&path).map_err(fail)?;
        Ok(path)
    }

    /// Makes a folder the tests', whichever user they change to.
    pub(super) fn hand_over(&self, folder: &Path) -> io::Result<()> {
        give_to(self.user.as_ref(), folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o1777))
    }

    /// Clears it away.
    pub(super) fn close(mut self) -> Result<(), String> {
        let Some(folder) = self.folder.take() else { return Ok(()) };
        let path = folder.keep();
        clear(&path).map_err(|error| format!("{} could not be removed: {error}", path.display()))
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            // Nobody is there to be told.
            let _ = clear(&folder.keep());
        }
    }
}

/// Its own group: the terminal's Ctrl-C is for the profiler, which then clears away in order.
fn own_group(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    command.process_group(0);
}

/// The guard's `main`: waits for the end of its input, then clears away the folder and, if there is
/// one, the control group.
pub(in crate::load) fn guard(mut args: impl Iterator<Item = OsString>) -> i32 {
    let Some(folder) = args.next().map(PathBuf::from) else { return 2 };
    let group = args.next().map(PathBuf::from);
    let mut byte = [0];
    while match io::stdin().read(&mut byte) {
        Ok(count) => count > 0,
        Err(error) => error.kind() == io::ErrorKind::Interrupted,
    } {}
    if let Some(group) = group {
        // It kills who is left in there.
        let _ = remove_group(&group);
    }
    let patience = Instant::now() + PATIENCE;
    while folder.exists() {
        let cleared = clear(&folder);
        if cleared.is_err() && Instant::now() > patience {
            return 1;
        }
        if cleared.is_err() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    0
}

/// Unmounts what is mounted below a folder, takes its files off loop devices, and removes it.
pub(super) fn clear(folder: &Path) -> io::Result<()> {
    for mount in mounts_below(folder)? {
        // Lazily: a file that is still open must not keep the folder.
        if let Err(errno) = umount2(mount.as_path(), MntFlags::MNT_DETACH)
            && errno != nix::errno::Errno::EINVAL
        {
            let text = format!("cannot unmount {}: {}", mount.display(), errno.desc());
            return Err(io::Error::other(text));
        }
    }
    detach_loops(folder);
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            // A test may leave folders that even their owner cannot look into.
            make_accessible(folder);
            fs::remove_dir_all(folder)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn make_accessible(folder: &Path) {
    let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_accessible(&entry.path());
        }
    }
}

/// What is mounted below `folder`, last first.
pub(super) fn mounts_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let table = fs::read("/proc/self/mountinfo")?;
    let mut mounts: Vec<PathBuf> = table
        .split(|&byte| byte == b'\n')
        .filter_map(|line| line.split(|&byte| byte == b' ').nth(4).map(unescape))
        .filter(|mount| mount.starts_with(&folder))
        .collect();
    mounts.reverse();
    Ok(mounts)
}

/// A path of the mount table, in which blanks are written as `\040`.
fn unescape(text: &[u8]) -> PathBuf {
    let mut path = Vec::new();
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok()))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                path.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                path.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

/// Loop devices keep their file when the test that attached them is killed. As far as may be: only root
/// can have attached one.
fn detach_loops(folder: &Path) {
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name.as_encoded_bytes().starts_with(b"loop") {
            continue;
        }
        let Ok(file) = fs::read(entry.path().join("loop/backing_file")) else { continue };
        let file = file.strip_suffix(b"\n").unwrap_or(&file);
        if Path::new(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(file)).starts_with(folder)
        {
            let _ = sys::detach_loop(&Path::new("/dev").join(&name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_mount_table_are_read_back() {
        assert_eq!(unescape(br"/a\040b\134c"), Path::new(r"/a b\c"));
        assert_eq!(unescape(br"/plain\9"), Path::new(r"/plain\9"));
    }

    #[test]
    fn folders_that_cannot_be_looked_into_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("work");
        fs::create_dir_all(folder.join("dark/deep")).unwrap();
        fs::write(folder.join("dark/deep/file"), "x").unwrap();
        fs::set_permissions(folder.join("dark"), fs::Permissions::from_mode(0o0)).unwrap();
        clear(&folder).unwrap();
        assert!(!folder.exists());
        clear(&folder).unwrap();
    }
}
