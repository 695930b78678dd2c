//! The private folder of a load of LTP: tests make their files, mounts and loop devices below it, and all of
//! that is gone after the load, also when the profiler was killed.
//!
//! The folder itself is root's, and so is `own` in it, where root's own files are. Next to that lie the
//! folders that are handed over to the tests' user, whose names he cannot change; what is in them is reached
//! by descriptor alone (see [`crate::load::folder`]).

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};

use crate::load::HelperProgram;
use crate::load::confine::{Confinement, Enclosure, LoadUser, remove_group};
use crate::load::folder::{self, FOR_ALL, Folder};
use crate::load::helper::Role;
use crate::load::sys;

/// How long the guard of a dead profiler tries: what used the folder is being killed meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where root's own files are.
const OWN: &str = "own";

/// The last that a guard reads from a profiler that has cleared away itself.
const CLEARED: &str = "cleared";

/// The folder, with a process that clears it away should the profiler be killed.
pub(super) struct WorkFolder {
    path: PathBuf,
    clearer: Clearer,
    /// Whose the tests' own folders are.
    user: Option<LoadUser>,
    /// It has been cleared away, or could not be.
    closed: bool,
    // Dropped last: its input closes only when the folder is gone.
    guard: Guard,
}

/// A child that is waited for on drop; its input closes just before that.
struct Guard(Child);

impl Guard {
    fn write(&mut self, text: &str) -> io::Result<()> {
        self.0.stdin.as_mut().map_or(Ok(()), |input| input.write_all(text.as_bytes()))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // `wait` closes the input, on which the guard ends.
        let _ = self.0.wait();
    }
}

/// What the guard is told, as one line of JSON on its standard input.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Orders {
    clearing: Clearing,
    /// The control group, which is removed at the end.
    group: Option<PathBuf>,
}

/// What may be cleared away.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Clearing {
    /// The user that tests run as, where that is another one.
    user: Option<u32>,
    /// The mounts that were there before the load.
    before: BTreeSet<MountKey>,
}

/// An open folder, and what may be cleared away of what is in it.
struct Clearer {
    top: Folder,
    clearing: Clearing,
}

impl WorkFolder {
    /// A new folder where `confinement` wants it. The process that clears it away removes the control group
    /// of `enclosure`, too.
    pub(super) fn new(
        confinement: &Confinement,
        enclosure: &Enclosure,
        helper: &HelperProgram,
    ) -> Result<Self, String> {
        let parent = confinement.directory.clone().unwrap_or_else(std::env::temp_dir);
        let made = tempfile::Builder::new().prefix("profiler-ltp-").tempdir_in(&parent);
        let made = made
            .map_err(|error| format!("a folder for the tests in {}: {error}", parent.display()))?;
        let user = confinement.user.clone().filter(|user| !user.is_me());
        let clearer = Clearer::of(made.path(), user.as_ref());
        let clearer = clearer.map_err(|error| format!("{}: {error}", made.path().display()))?;
        let orders = Orders { clearing: clearer.clearing.clone(), group: enclosure.group.clone() };
        let guard = start_guard(helper, made.path(), &clearer.top, &orders).map_err(|error| {
            format!("the guard of the tests' folder, {}: {error}", helper.path().display())
        })?;
        // From here on it is removed by descriptor.
        let path = made.keep();
        Ok(Self { path, clearer, user, closed: false, guard })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder for files of the profiler and the runners, which no other user can look into.
    pub(super) fn own(&self) -> PathBuf {
        self.path.join(OWN)
    }

    /// Empties the folder `name` below it, or makes it, and hands it over: each test begins with nothing.
    pub(super) fn fresh(&self, name: &str) -> Result<PathBuf, String> {
        self.remove(name)?;
        let path = self.path().join(name);
        let made = self.clearer.top.make(OsStr::new(name));
        let made = made.and_then(|folder| folder.hand_over(self.user.as_ref(), FOR_ALL));
        made.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// Clears away the folder `name` below it.
    pub(super) fn remove(&self, name: &str) -> Result<(), String> {
        let removed = self.clearer.remove(Path::new(name));
        removed.map_err(|error| format!("{}: {error}", self.path().join(name).display()))
    }

    /// Clears it away.
    pub(super) fn close(mut self) -> Result<(), String> {
        self.clear()
            .map_err(|error| format!("{} could not be removed: {error}", self.path.display()))
    }

    fn clear(&mut self) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        self.closed = true;
        let cleared = self.clearer.remove_all(&self.path);
        // Whatever is left the guard could not remove, either.
        let _ = self.guard.write(CLEARED);
        cleared
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        // Nobody is there to be told.
        let _ = self.clear();
    }
}

fn start_guard(
    helper: &HelperProgram,
    path: &Path,
    folder: &Folder,
    orders: &Orders,
) -> io::Result<Guard> {
    use std::os::unix::process::CommandExt as _;
    let mut command: Command = helper.command(Role::WorkGuard);
    // The open folder is its standard output: the path may lead elsewhere when it comes to use it.
    command.arg(path).stdin(Stdio::piped()).stdout(folder.descriptor()?);
    // Its own group: the terminal's Ctrl-C is for the profiler, which then clears away in order.
    let mut guard = Guard(command.process_group(0).spawn()?);
    guard.write(&format!("{}\n", serde_json::to_string(orders)?))?;
    Ok(guard)
}

/// The guard's `main`: waits for the end of its input, then clears away the folder that is its standard
/// output and, if there is one, the control group.
pub(in crate::load) fn guard(mut args: impl Iterator<Item = OsString>) -> i32 {
    let Some(path) = args.next().map(PathBuf::from) else { return 2 };
    let Ok(top) = io::stdout().as_fd().try_clone_to_owned() else { return 2 };
    let mut text = String::new();
    let _ = io::stdin().read_to_string(&mut text);
    let (orders, last) = text.split_once('\n').unwrap_or_default();
    if last == CLEARED {
        return 0;
    }
    // Half a line is of a profiler that was killed before anything was handed over.
    let Orders { clearing, group } = serde_json::from_str(orders).unwrap_or_default();
    let clearer = Clearer { top: Folder::from_descriptor(top), clearing };
    if let Some(group) = group {
        // It kills who is left in there.
        let _ = remove_group(&group);
    }
    let patience = Instant::now() + PATIENCE;
    while clearer.remove_all(&path).is_err() {
        if Instant::now() > patience {
            return 1;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    0
}

impl Clearer {
    /// Of the new folder at `path`, which it has ready for tests of `user`.
    fn of(path: &Path, user: Option<&LoadUser>) -> io::Result<Self> {
        let top = Folder::open(path)?;
        top.make(OsStr::new(OWN))?;
        // To be passed through, and neither read nor written.
        top.set_mode(Mode::S_IRWXU | Mode::S_IXGRP | Mode::S_IXOTH)?;
        let before = mounts()?.into_iter().map(|mount| mount.key).collect();
        let user = user.map(|user| user.uid);
        Ok(Self { top, clearing: Clearing { user, before } })
    }

    /// Removes the folder at `path`, which is the open one unless somebody has renamed it, with all in it.
    fn remove_all(&self, path: &Path) -> io::Result<()> {
        if self.top.path()?.is_none() {
            return Ok(());
        }
        self.detach(Path::new(""))?;
        self.top.empty(self.clearing.user)?;
        folder::remove_empty(path)
    }

    /// Removes the folder `name` in it, with all in that.
    fn remove(&self, name: &Path) -> io::Result<()> {
        self.detach(name)?;
        self.top.remove(name.as_os_str(), self.clearing.user)
    }

    /// Unmounts what the load has mounted below `name`, and takes its files there off loop devices.
    fn detach(&self, name: &Path) -> io::Result<()> {
        let Some(top) = self.top.path()? else { return Ok(()) };
        // Once more for what was hidden below another mount.
        while self.unmount(&top, name)? {}
        // Root alone attaches loop devices.
        if self.clearing.user.is_none() {
            detach_loops(&top.join(name));
        }
        Ok(())
    }

    /// Unmounts what is mounted below `name`, last first. Whether there was anything.
    fn unmount(&self, top: &Path, name: &Path) -> io::Result<bool> {
        let mut any = false;
        for mount in mounts()?.iter().rev() {
            let Ok(below) = mount.point.strip_prefix(top) else { continue };
            if !below.starts_with(name) || !self.clearing.may_unmount(mount) {
                continue;
            }
            // The table tells where it was; what is there now is asked of what was opened.
            let Ok(place) = folder::place(&self.top, below) else { continue };
            if folder::mount_id(&place)? != mount.key.id {
                continue;
            }
            // Lazily: a file that is still open must not keep the folder.
            if let Err(errno) = umount2(&folder::path_of(&place), MntFlags::MNT_DETACH) {
                let text = format!("cannot unmount {}: {}", mount.point.display(), errno.desc());
                return Err(io::Error::other(text));
            }
            any = true;
        }
        Ok(any)
    }
}

impl Clearing {
    /// Whether a mount is of the tests. Another user may have moved one there, with the folder that it is
    /// in, and can himself mount by FUSE alone, in whose options he stands.
    fn may_unmount(&self, mount: &Mount) -> bool {
        let by_user = |user: u32| {
            let is_fuse = mount.kind == "fuse" || mount.kind.starts_with("fuse.");
            is_fuse && mount.options.split(',').any(|option| option == format!("user_id={user}"))
        };
        !self.before.contains(&mount.key) && self.user.is_none_or(by_user)
    }
}

/// What tells a mount from those that were there before it; numbers alone are given again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct MountKey {
    id: u64,
    device: String,
}

/// A line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    key: MountKey,
    point: PathBuf,
    kind: String,
    /// Of the file system.
    options: String,
}

/// All mounts, in their order.
fn mounts() -> io::Result<Vec<Mount>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|&byte| byte == b'\n').filter_map(mount_in).collect())
}

/// `36 35 98:0 /root /point rw,noatime shared:1 - ext3 /dev/root rw`, see proc(5).
fn mount_in(line: &[u8]) -> Option<Mount> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let mut fields = line.split(|&byte| byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = text(fields.nth(1)?);
    let point = unescape(fields.nth(1)?);
    let mut of_system = fields.skip_while(|&field| field != b"-").skip(1);
    let kind = text(of_system.next()?);
    let options = text(of_system.nth(1)?);
    Some(Mount { key: MountKey { id, device }, point, kind, options })
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
        if Path::new(OsStr::from_bytes(file)).starts_with(folder) {
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

    const TABLE: &str = "22 1 0:20 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/l
90 22 0:44 / /work/mnt rw - tmpfs none rw
91 22 0:45 / /work/mine rw,nosuid - fuse.sshfs me@there: rw,user_id=65534,group_id=65534
92 22 0:46 / /work/his rw,nosuid - fuse /dev/fuse rw,user_id=1000,group_id=1000";

    fn may_unmount(user: Option<u32>, before: &[&str]) -> Vec<u64> {
        let mounts: Vec<Mount> =
            TABLE.lines().map(|line| mount_in(line.as_bytes()).unwrap()).collect();
        let key = |mount: &Mount| mount.key.clone();
        let was = mounts.iter().filter(|mount| before.contains(&mount.key.device.as_str()));
        let clearing = Clearing { user, before: was.map(key).collect() };
        let unmounted = mounts.iter().filter(|mount| clearing.may_unmount(mount));
        unmounted.map(|mount| mount.key.id).collect()
    }

    #[test]
    fn what_was_mounted_before_is_never_unmounted() {
        assert_eq!(may_unmount(None, &["0:20"]), [90, 91, 92]);
        assert_eq!(may_unmount(None, &["0:20", "0:44", "0:46"]), [91]);
        assert_eq!(may_unmount(Some(65_534), &["0:20", "0:45"]), [0; 0]);
    }

    #[test]
    fn of_another_users_test_only_what_he_has_mounted_himself_is_unmounted() {
        assert_eq!(may_unmount(Some(65_534), &[]), [91]);
        assert_eq!(may_unmount(Some(1), &[]), [0; 0]);
    }
}
