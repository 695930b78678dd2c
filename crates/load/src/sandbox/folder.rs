//! Folders that a load's user may write to.
//!
//! Their owner can rename their entries, replace them by links or move other folders there at any time. So root opens them by
//! descriptor, follows neither links nor mounts, and removes the entries with the rights of that user.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat, openat2, renameat};
use nix::sys::stat::{Mode, fchmod, fstat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, geteuid, mkdir, setfsgid, setfsuid, unlinkat};
use rustix::thread::set_thread_groups;

use super::trusted_path::refuse_changeable;
use super::user::LoadUser;
use crate::syscalls;

/// How long a folder may get no emptier: other processes may keep filling it.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How many file systems may lie in each other, such as subvolumes. For each a few files are open.
const MAX_NESTED: u32 = 32;

/// The folder with the load's files.
const FILES: &str = "files";

const FLAGS: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// A load's folder. It belongs to the caller, so the load cannot rename the folder for files in it.
#[derive(Debug)]
pub(super) struct LoadFolder {
    path: PathBuf,
    /// Owner of the files, if not the caller.
    user: Option<LoadUser>,
    top: Folder,
}

impl LoadFolder {
    /// Creates it, still without the folder for files.
    pub(super) fn create(path: &Path, user: Option<LoadUser>) -> io::Result<Self> {
        mkdir(path, Mode::S_IRWXU)?;
        let top = Folder::open(path)?;
        // The owner of the folder that it is in may have exchanged it.
        if fstat(&top.0)?.st_uid != geteuid().as_raw() {
            return Err(io::Error::other("it was replaced by another user's"));
        }
        // Others may pass through it, but neither read nor write it.
        fchmod(&top.0, Mode::S_IRWXU | Mode::S_IXGRP | Mode::S_IXOTH)?;
        Ok(Self { path: path.to_owned(), user, top })
    }

    /// Opens the one that is there. Fails if another user can replace it.
    pub(super) fn open(path: &Path, user: Option<LoadUser>) -> io::Result<Self> {
        refuse_changeable(path)?;
        Ok(Self { path: path.to_owned(), user, top: Folder::open(path)? })
    }

    /// Where the load's files are.
    pub(super) fn files(&self) -> PathBuf {
        self.path.join(FILES)
    }

    /// Makes the folder for files, of this mode, or empties it.
    pub(super) fn refresh(&self, mode: Mode) -> io::Result<()> {
        match mkdirat(&self.top.0, FILES, Mode::S_IRWXU) {
            Ok(()) => {}
            Err(Errno::EEXIST) => self.empty_files()?,
            Err(errno) => return Err(errno.into()),
        }
        let files = self.top.child(OsStr::new(FILES))?;
        fchmod(&files.0, mode)?;
        if let Some(user) = &self.user {
            fchown(&files.0, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
        }
        Ok(())
    }

    fn empty_files(&self) -> io::Result<()> {
        self.detach_loops();
        let files = self.top.child(OsStr::new(FILES))?;
        as_user(self.user.as_ref(), || files.empty(0))
    }

    /// Removes it.
    pub(super) fn remove(&self) -> io::Result<()> {
        if self.user.is_some() {
            self.remove_files()?;
        }
        self.detach_loops();
        self.top.empty(0)?;
        match unlinkat(AT_FDCWD, &self.path, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes another user's folder, with that user's rights to its entries.
    fn remove_files(&self) -> io::Result<()> {
        let mut deadline = None;
        loop {
            match self.empty_files() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                emptied => emptied?,
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + TIMEOUT);
            match unlinkat(&self.top.0, FILES, UnlinkatFlags::RemoveDir) {
                Ok(()) => return Ok(()),
                // Another process of the user has filled it again.
                Err(Errno::ENOTEMPTY | Errno::EEXIST) if Instant::now() < deadline => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Detaches its files from loop devices, which keep them when the test that attached them is killed. Their paths are whole only
    /// where they were mounted, which may be gone. Errors are ignored: only root can attach one.
    fn detach_loops(&self) {
        let name = self.path.file_name().unwrap_or_default().as_encoded_bytes();
        let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        for entry in devices.filter(|_| self.user.is_none()) {
            let device = entry.file_name();
            if !device.as_encoded_bytes().starts_with(b"loop") {
                continue;
            }
            let Ok(file) = fs::read(entry.path().join("loop/backing_file")) else { continue };
            if file.split(|&byte| byte == b'/').any(|part| part == name) {
                let _ = syscalls::detach_loop(&Path::new("/dev").join(&device));
            }
        }
    }
}

/// Runs `work` with the rights to files that `user` has, and no others.
fn as_user(
    user: Option<&LoadUser>,
    work: impl FnOnce() -> io::Result<()> + Send,
) -> io::Result<()> {
    let Some(user) = user else { return work() };
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    thread::scope(|scope| {
        // All of this is a thread's own, and without the user id of root the kernel takes its rights to files away (capabilities(7)).
        let thread = thread::Builder::new().spawn_scoped(scope, move || {
            set_thread_groups(&[])?;
            setfsgid(gid);
            setfsuid(uid);
            // Both return the former id, also if they fail.
            if setfsgid(gid) != gid || setfsuid(uid) != uid {
                return Err(io::Error::other(format!("cannot take the rights of user {uid}")));
            }
            work()
        });
        let thread = thread.map_err(|error| {
            io::Error::other(format!(
                "a thread for the clean-up: {error}; is there a limit of processes?"
            ))
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the clean-up panicked")))
    })
}

/// An open folder.
#[derive(Debug)]
struct Folder(OwnedFd);

impl Folder {
    /// Opens the folder at `path`, which must not be a link.
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(open(path, FLAGS, Mode::empty())?))
    }

    /// Opens its entry `name`, which must be a folder, and neither a link nor a mount.
    fn child(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_XDEV);
        let place = Self(openat2(&self.0, name, how)?);
        if fstat(&place.0)?.st_mode & 0o700 != 0o700 {
            // Refused if it is another user's: then it may not open below.
            let _ = fs::set_permissions(place.proc_path(), fs::Permissions::from_mode(0o700));
        }
        Ok(Self(openat(&place.0, ".", FLAGS, Mode::empty())?))
    }

    /// A path that leads to it wherever it is now.
    fn proc_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    fn entries(&self) -> io::Result<fs::ReadDir> {
        fs::read_dir(self.proc_path())
    }

    /// Removes everything in it that this thread may remove. It is `nested` file systems deep in the folder to remove.
    ///
    /// # Errors
    /// The first entry that had to be left; all others are removed.
    fn empty(&self, nested: u32) -> io::Result<()> {
        let mut deadline = Instant::now() + TIMEOUT;
        let mut fewest = self.entries()?.count();
        let mut left = HashSet::new();
        let mut result = Ok(());
        loop {
            let mut changed = false;
            for entry in self.entries()? {
                let name = entry?.file_name();
                if Instant::now() > deadline {
                    let count = self.entries()?.count();
                    if count >= fewest {
                        let text =
                            "no emptier after two minutes: is another process writing to it?";
                        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                    }
                    (fewest, deadline) = (count, Instant::now() + TIMEOUT);
                }
                if left.contains(&name) {
                    continue;
                }
                changed = true;
                if let Err(error) = self.remove(&name, nested) {
                    let path = fs::read_link(self.proc_path()).unwrap_or_default().join(&name);
                    result = result.and(Err(of_entry(&path, &error, ": left")));
                    left.insert(name);
                }
            }
            if !changed {
                return result;
            }
        }
    }

    /// Removes the entry `name`. What is in folders of a folder comes up into this one first: trees may be deeper than a process
    /// may have open files.
    fn remove(&self, name: &OsStr, nested: u32) -> io::Result<()> {
        if self.unlink(name)? {
            return Ok(());
        }
        let child = match self.child(name) {
            // Its owner has replaced it meanwhile: the next round sees it.
            Err(error) if is_of_a_race(&error) => return Ok(()),
            child => child?,
        };
        let mut result = Ok(());
        for entry in child.entries()? {
            let entry = entry?.file_name();
            match child.unlink_or_move(&entry, self, nested) {
                Err(error) if !is_of_a_race(&error) => {
                    result = result.and(Err(of_entry(Path::new(&entry), &error, "")));
                }
                _ => {}
            }
        }
        // If it has been filled again meanwhile, it is seen once more.
        result.and_then(|()| self.unlink(name).map(drop))
    }

    /// Removes the entry `name`, or moves it into `above` if it is a folder that is not empty.
    fn unlink_or_move(&self, name: &OsStr, above: &Self, nested: u32) -> io::Result<()> {
        if self.unlink(name)? {
            return Ok(());
        }
        let number = unused_name("");
        let moved = match renameat(&self.0, name, &above.0, number.as_str()) {
            // Its own mode may keep its owner from moving it.
            Err(Errno::EACCES) => {
                self.child(name).map(|_| renameat(&self.0, name, &above.0, number.as_str()))?
            }
            moved => moved,
        };
        match moved {
            // It is on another file system than the folder above, such as a subvolume of btrfs.
            Err(Errno::EXDEV) if nested < MAX_NESTED => {
                self.child(name)?.empty(nested + 1)?;
                self.unlink(name).map(drop)
            }
            moved => Ok(moved?),
        }
    }

    /// Removes a file or an empty folder; false if it is a folder that is not empty.
    fn unlink(&self, name: &OsStr) -> io::Result<bool> {
        let unlinked = match unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => unlinkat(&self.0, name, UnlinkatFlags::RemoveDir),
            unlinked => unlinked,
        };
        match unlinked {
            Ok(()) | Err(Errno::ENOENT) => Ok(true),
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => Ok(false),
            // Such as a mount.
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Whether a folder that was there is gone, or is no folder any more.
fn is_of_a_race(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

pub(super) fn of_entry(path: &Path, error: &io::Error, more: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}{more}", path.display()))
}

/// `prefix` and 16 random hexadecimal digits: the name of a folder to create.
pub(super) fn unused_name(prefix: &str) -> String {
    format!("{prefix}{:016x}", RandomState::new().build_hasher().finish())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, chown, symlink};

    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    fn create(path: &Path, user: Option<LoadUser>) -> io::Result<LoadFolder> {
        let folder = LoadFolder::create(path, user)?;
        folder.refresh(Mode::S_IRWXU)?;
        Ok(folder)
    }

    /// Has a load folder removed that has what `make` puts among its files.
    fn removed(make: impl FnOnce(&Path)) -> io::Result<()> {
        let parent = tempfile::tempdir()?;
        let path = parent.path().join("load");
        let folder = create(&path, None)?;
        make(&folder.files());
        folder.remove()?;
        assert!(!path.exists());
        folder.remove()
    }

    #[test]
    fn folders_without_permissions_are_removed() {
        let make = |work: &Path| {
            fs::create_dir_all(work.join("dark/deep/deeper")).unwrap();
            fs::write(work.join("dark/deep/deeper/file"), "x").unwrap();
            for folder in ["dark/deep/deeper", "dark/deep", "dark"] {
                fs::set_permissions(work.join(folder), fs::Permissions::from_mode(0o0)).unwrap();
            }
        };
        removed(make).unwrap();
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "x").unwrap();
        let make = |work: &Path| {
            fs::create_dir(work.join("a")).unwrap();
            symlink(outside.path(), work.join("a/link")).unwrap();
            symlink("/", work.join("root")).unwrap();
        };
        removed(make).unwrap();
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn a_link_in_the_place_of_the_files_is_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir(parent.path().join("precious")).unwrap();
        fs::write(parent.path().join("precious/kept"), "x").unwrap();
        let folder = create(&parent.path().join("load"), None).unwrap();
        fs::remove_dir(folder.files()).unwrap();
        symlink("../precious", folder.files()).unwrap();
        folder.refresh(Mode::S_IRWXU).unwrap_err();
        folder.remove().unwrap();
        assert!(parent.path().join("precious/kept").exists());
    }

    #[test]
    fn a_tree_may_be_wide_and_deeper_than_the_limit_of_open_files() {
        let make = |work: &Path| {
            let mut here = Folder::open(work).unwrap();
            for _ in 0..3_000 {
                mkdirat(&here.0, "d", Mode::S_IRWXU).unwrap();
                here = here.child(OsStr::new("d")).unwrap();
            }
            for number in 0..300 {
                fs::create_dir(work.join(format!("wide{number}"))).unwrap();
                fs::write(work.join(format!("wide{number}/file")), "x").unwrap();
            }
        };
        removed(make).unwrap();
    }

    /// Root's folder that the load's user has moved among its files.
    #[test]
    fn what_the_user_may_not_remove_is_left_and_named() {
        if !geteuid().is_root() {
            return;
        }
        let nobody = LoadUser::nobody();
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("load");
        let folder = create(&path, Some(nobody.clone())).unwrap();
        let files = folder.files();
        fs::create_dir_all(files.join("his/roots")).unwrap();
        for file in ["his/roots/file", "his/file", "file"] {
            fs::write(files.join(file), "x").unwrap();
        }
        chown(files.join("his"), Some(nobody.uid), Some(nobody.gid)).unwrap();
        let error = folder.remove().unwrap_err().to_string();
        assert!(error.contains("files/his: roots: ") && error.ends_with("left"), "{error}");
        assert_eq!(fs::metadata(files.join("his/roots/file")).unwrap().uid(), 0);
        assert!(!files.join("file").exists() && !files.join("his/file").exists());
        // Given to the user, it goes.
        chown(files.join("his/roots"), Some(nobody.uid), Some(nobody.gid)).unwrap();
        folder.remove().unwrap();
        assert!(!path.exists());
    }

    /// Where the kernel has no room to note where a folder of a lower layer has gone, it does not move it, as between subvolumes.
    #[test]
    fn folders_that_cannot_be_moved_are_emptied_in_place() {
        if !geteuid().is_root() {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let path = |name: &str| parent.path().join(name);
        for folder in ["upper", "work", "all", "lower/load/files/a/b/c"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        for file in ["a/file", "a/b/file", "a/b/c/file"] {
            fs::write(path("lower/load/files").join(file), "x").unwrap();
        }
        let of = |name: &str| path(name).to_string_lossy().into_owned();
        let (lower, upper, work) = (of("lower"), of("upper"), of("work"));
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=off");
        let remove = || {
            let none: Option<&str> = None;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(none, "/", none, private, none).unwrap();
            let (all, overlay) = (path("all"), Some("overlay"));
            mount(overlay, &all, overlay, MsFlags::empty(), Some(&*options))?;
            let moved = fs::rename(all.join("load/files/a"), all.join("load/files/moved"));
            assert_eq!(moved.unwrap_err().kind(), io::ErrorKind::CrossesDevices);
            LoadFolder::open(&all.join("load"), None)?.remove()?;
            assert!(!all.join("load").exists());
            io::Result::Ok(())
        };
        // Mounts of this thread alone.
        thread::scope(|scope| scope.spawn(remove).join()).unwrap().unwrap();
    }
}
