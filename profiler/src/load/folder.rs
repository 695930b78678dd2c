//! Folders that a load's user may write to, as root handles them: by descriptor, never by a path that
//! leads through them.
//!
//! Who owns a folder may rename it, put a link in its place, or move other folders into it, also while
//! root clears it away. So what root does here, the user could do as well: it unlinks in folders that are
//! the user's, and follows neither links nor mounts.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, geteuid, unlinkat};

use super::confine::LoadUser;

/// How long a folder may take to be emptied: somebody may go on filling it.
const PATIENCE: Duration = Duration::from_secs(120);

/// As many links as the kernel follows on one way (`MAXSYMLINKS`; path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Mode of a folder that its user, and the users that LTP's tests change to, make their files in.
pub(super) const FOR_ALL: Mode = Mode::from_bits_truncate(0o1777);

/// An open folder.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

/// Which folder it is, whatever its name.
type Identity = (u64, u64);

impl Folder {
    /// Opens the folder at `path`, which must not be a link.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(open(path, flags(), Mode::empty())?))
    }

    /// The folder behind a descriptor.
    pub(super) fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Opens what is called `name` in it, if it is a folder and no link.
    fn child(&self, name: &OsStr) -> io::Result<Self> {
        match openat(&self.0, name, flags(), Mode::empty()) {
            Err(Errno::EACCES) => {
                // Its owner shut himself out. By descriptor, as the name may be another's by now.
                let place = openat(
                    &self.0,
                    name,
                    OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
                    Mode::empty(),
                )?;
                let own = std::os::unix::fs::PermissionsExt::from_mode(0o700);
                fs::set_permissions(link_of(&place), own)?;
                Ok(Self(openat(&self.0, name, flags(), Mode::empty())?))
            }
            result => Ok(Self(result?)),
        }
    }

    /// Makes a folder in it, which nobody else may be able to write to, for this user alone.
    pub(super) fn make(&self, name: &OsStr) -> io::Result<Self> {
        mkdirat(&self.0, name, Mode::S_IRWXU)?;
        Ok(Self(openat(&self.0, name, flags(), Mode::empty())?))
    }

    /// Sets its mode.
    pub(super) fn set_mode(&self, mode: Mode) -> io::Result<()> {
        Ok(fchmod(&self.0, mode)?)
    }

    /// Makes it another user's; with `mode` before that, as afterwards it is no longer ours to change.
    pub(super) fn hand_over(&self, user: Option<&LoadUser>, mode: Mode) -> io::Result<()> {
        self.set_mode(mode)?;
        let Some(user) = user else { return Ok(()) };
        Ok(fchown(&self.0, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?)
    }

    /// Its path now; `None` if it has been removed.
    pub(super) fn path(&self) -> io::Result<Option<PathBuf>> {
        let removed = fstat(&self.0)?.st_nlink == 0;
        Ok(if removed { None } else { Some(fs::read_link(link_of(&self.0))?) })
    }

    /// Removes the empty folder `name` from it.
    pub(super) fn remove_empty(&self, name: &OsStr) -> io::Result<()> {
        match unlinkat(&self.0, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes the folder `name` from it, and all that `user` may remove below that.
    pub(super) fn remove(&self, name: &OsStr, user: Option<u32>) -> io::Result<()> {
        match self.child(name) {
            Ok(child) => {
                if mount_of(&child)? != mount_of(self)? {
                    return Err(io::Error::other(format!(
                        "{}: a mount point: left",
                        shown(self, name)
                    )));
                }
                let patience = Instant::now() + PATIENCE;
                loop {
                    child.empty(user)?;
                    match self.remove_empty(name) {
                        // Somebody was faster.
                        Err(error)
                            if error.kind() == io::ErrorKind::DirectoryNotEmpty
                                && Instant::now() < patience => {}
                        result => return result,
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes everything below it on the same mount that `user`, if it is not the caller, could remove.
    ///
    /// # Errors
    /// The first that had to be left. All else is gone.
    pub(super) fn empty(&self, user: Option<u32>) -> io::Result<()> {
        let patience = Instant::now() + PATIENCE;
        let mut here = Self(self.descriptor()?);
        let facts = fstat(&here.0)?;
        let mut sweep = Sweep {
            user,
            mount: mount_of(&here)?,
            level: Level::new(OsString::new(), &facts, true, user)?,
            above: Vec::new(),
            first: None,
        };
        if !sweep.level.may_empty {
            sweep.leave(&here, OsStr::new("."), &not_of(user, &facts));
        }
        loop {
            if Instant::now() > patience {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("not empty after {} s: is somebody writing to it?", PATIENCE.as_secs()),
                ));
            }
            match sweep.clear_files(&here)? {
                // One descriptor at a time, and no recursion: trees may be deeper than either allows.
                Some(child) => here = child,
                None => match sweep.up(here)? {
                    Some(parent) => here = parent,
                    None => return sweep.first.map_or(Ok(()), Err),
                },
            }
        }
    }
}

/// A walk through a tree that removes it.
struct Sweep {
    user: Option<u32>,
    mount: u64,
    level: Level,
    above: Vec<Level>,
    first: Option<io::Error>,
}

struct Level {
    /// In the folder above.
    name: OsString,
    identity: Identity,
    /// No folder of the user's is above it.
    ours: bool,
    may_empty: bool,
    /// What has to be left.
    left: HashSet<OsString>,
}

impl Level {
    fn new(name: OsString, facts: &FileStat, in_ours: bool, user: Option<u32>) -> io::Result<Self> {
        let owner = facts.st_uid;
        let (may_empty, ours) = may_empty(owner, geteuid().as_raw(), in_ours, user);
        let identity = (facts.st_dev, facts.st_ino);
        Ok(Self { name, identity, ours, may_empty, left: HashSet::new() })
    }
}

/// Whether what is in a folder of `owner` is removed, and whether it is one of ours: below one of the user's
/// nothing is, which he may have moved there.
fn may_empty(owner: u32, me: u32, in_ours: bool, user: Option<u32>) -> (bool, bool) {
    match user {
        None => (true, true),
        Some(user) if owner == user => (true, false),
        Some(_) => (in_ours && owner == me, in_ours && owner == me),
    }
}

fn not_of(user: Option<u32>, facts: &FileStat) -> io::Error {
    let user = user.map_or_else(String::new, |user| format!(", not to the load's user {user}"));
    io::Error::other(format!("it belongs to user {}{user}: left", facts.st_uid))
}

impl Sweep {
    /// Removes what is no folder in `here`; the first folder that is not empty, to go on with.
    fn clear_files(&mut self, here: &Folder) -> io::Result<Option<Folder>> {
        if !self.level.may_empty {
            return Ok(None);
        }
        for entry in fs::read_dir(link_of(&here.0))? {
            let name = entry?.file_name();
            if self.level.left.contains(&name) {
                continue;
            }
            let unlink = |how| unlinkat(&here.0, name.as_os_str(), how);
            let unlinked = match unlink(UnlinkatFlags::NoRemoveDir) {
                Err(Errno::EISDIR) => unlink(UnlinkatFlags::RemoveDir),
                other => other,
            };
            match unlinked {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::EBUSY) => {
                    match self.down(here, name.clone()) {
                        Ok(child) => return Ok(Some(child)),
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => self.leave(here, &name, &error),
                    }
                }
                Err(errno) => self.leave(here, &name, &errno.into()),
            }
        }
        Ok(None)
    }

    fn down(&mut self, here: &Folder, name: OsString) -> io::Result<Folder> {
        let child = here.child(&name)?;
        if mount_of(&child)? != self.mount {
            return Err(io::Error::other("a mount point: left"));
        }
        let facts = fstat(&child.0)?;
        let level = Level::new(name, &facts, self.level.ours, self.user)?;
        if !level.may_empty {
            return Err(not_of(self.user, &facts));
        }
        self.above.push(std::mem::replace(&mut self.level, level));
        Ok(child)
    }

    /// To the folder above, out of which `here` is removed; `None` at the top.
    fn up(&mut self, here: Folder) -> io::Result<Option<Folder>> {
        let Some(above) = self.above.pop() else { return Ok(None) };
        let level = std::mem::replace(&mut self.level, above);
        let parent = Folder(openat(&here.0, "..", flags(), Mode::empty())?);
        let facts = fstat(&parent.0)?;
        if (facts.st_dev, facts.st_ino) != self.level.identity {
            let name = level.name.display();
            let text = format!("the folder {name} was moved while it was being removed");
            return Err(io::Error::other(text));
        }
        if !level.left.is_empty() {
            self.level.left.insert(level.name);
            return Ok(Some(parent));
        }
        match unlinkat(&parent.0, level.name.as_os_str(), UnlinkatFlags::RemoveDir) {
            // Filled again meanwhile, or renamed: the folder above is read once more.
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            Err(errno) => self.leave(&parent, &level.name, &errno.into()),
        }
        Ok(Some(parent))
    }

    fn leave(&mut self, here: &Folder, name: &OsStr, why: &io::Error) {
        self.first.get_or_insert_with(|| {
            io::Error::new(why.kind(), format!("{}: {why}", shown(here, name)))
        });
        self.level.left.insert(name.to_owned());
    }
}

fn shown(folder: &Folder, name: &OsStr) -> String {
    let path = fs::read_link(link_of(&folder.0)).unwrap_or_default();
    path.join(name).display().to_string()
}

fn flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

/// A path that leads to what is open, wherever that is now.
fn link_of(descriptor: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()))
}

fn mount_of(folder: &Folder) -> io::Result<u64> {
    mount_id(&folder.0)
}

/// The number of the mount that a descriptor is on, as in the mount table.
pub(super) fn mount_id(descriptor: &OwnedFd) -> io::Result<u64> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()))?;
    let id = facts.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("/proc/self/fdinfo tells no mount"))
}

/// Opens the place `below`, itself or what is mounted there, by steps that follow no link.
pub(super) fn place(folder: &Folder, below: &Path) -> io::Result<OwnedFd> {
    let mut here = folder.descriptor()?;
    for name in below.components() {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        here = openat(&here, name.as_os_str(), flags, Mode::empty())?;
    }
    Ok(here)
}

/// A path of an open place for calls that have no form for descriptors. It is to be followed.
pub(super) fn path_of(place: &OwnedFd) -> PathBuf {
    link_of(place)
}

/// Removes the empty folder at `path`, whoever has put it there.
pub(super) fn remove_empty(path: &Path) -> io::Result<()> {
    match unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The first folder or link on the way to `path` that somebody else than root and this user can change, so
/// that the way may lead elsewhere the next time. Links are followed as the kernel does.
///
/// # Errors
/// If there is nothing at `path`, or the way there cannot be read.
pub(crate) fn changeable(path: &Path) -> io::Result<Option<PathBuf>> {
    use std::os::unix::fs::MetadataExt as _;
    let mut here = PathBuf::from("/");
    let path = std::path::absolute(path)?;
    let steps = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|step| step.as_os_str().to_owned()).collect()
    };
    // The next one last.
    let mut steps_left = steps(&path);
    let mut links = 0;
    while let Some(step) = steps_left.pop() {
        let next = match Path::new(&step).components().next() {
            Some(Component::RootDir) => PathBuf::from("/"),
            Some(Component::ParentDir) => here.parent().unwrap_or(&here).to_owned(),
            _ => here.join(&step),
        };
        let facts = fs::symlink_metadata(&next)?;
        let owned = facts.uid() == 0 || facts.uid() == geteuid().as_raw();
        if facts.is_symlink() {
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::ELOOP.into());
            }
            if !owned {
                return Ok(Some(next));
            }
            steps_left.extend(steps(&fs::read_link(&next)?));
            continue;
        }
        // In a sticky one entries are renamed by their owners alone.
        let open = facts.mode() & 0o022 != 0 && facts.mode() & 0o1000 == 0;
        if !owned || open {
            return Ok(Some(next));
        }
        here = next;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn only_the_users_own_is_removed_in_the_users_folders() {
        let (root, user, other) = (0, 7, 8);
        // What root has made above all folders of the user's is root's to remove.
        assert_eq!(may_empty(root, root, true, Some(user)), (true, true));
        assert_eq!(may_empty(user, root, true, Some(user)), (true, false));
        assert_eq!(may_empty(other, root, true, Some(user)), (false, false));
        // Below the user's he may have moved it there.
        assert_eq!(may_empty(root, root, false, Some(user)), (false, false));
        assert_eq!(may_empty(user, root, false, Some(user)), (true, false));
        // Without another user there is nobody to be protected from.
        for owner in [root, user, other] {
            assert_eq!(may_empty(owner, user, true, None), (true, true));
        }
    }

    fn removed(make: impl FnOnce(&Path)) -> tempfile::TempDir {
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir(parent.path().join("work")).unwrap();
        make(&parent.path().join("work"));
        let folder = Folder::open(parent.path()).unwrap();
        folder.remove(OsStr::new("work"), None).unwrap();
        assert!(!parent.path().join("work").exists());
        folder.remove(OsStr::new("work"), None).unwrap();
        parent
    }

    #[test]
    fn folders_that_cannot_be_looked_into_are_removed() {
        removed(|work| {
            fs::create_dir_all(work.join("dark/deep")).unwrap();
            fs::write(work.join("dark/deep/file"), "x").unwrap();
            for folder in ["dark/deep", "dark"] {
                fs::set_permissions(work.join(folder), fs::Permissions::from_mode(0o0)).unwrap();
            }
        });
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "x").unwrap();
        removed(|work| {
            fs::create_dir(work.join("a")).unwrap();
            symlink(outside.path(), work.join("a/link")).unwrap();
            symlink("/", work.join("root")).unwrap();
        });
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn a_tree_may_be_wide_and_deeper_than_files_may_be_open() {
        removed(|work| {
            let mut here = Folder::open(work).unwrap();
            for _ in 0..3_000 {
                here = here.make(OsStr::new("d")).unwrap();
            }
            for number in 0..300 {
                fs::create_dir(work.join(format!("wide{number}"))).unwrap();
                fs::write(work.join(format!("wide{number}/file")), "x").unwrap();
            }
        });
    }

    #[test]
    fn what_is_another_users_is_left_and_named() {
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir(parent.path().join("work")).unwrap();
        fs::write(parent.path().join("work/file"), "x").unwrap();
        let nobody = geteuid().as_raw() + 1;
        let folder = Folder::open(&parent.path().join("work")).unwrap();
        // As one that `nobody` had moved into a folder of his.
        let facts = fstat(&folder.0).unwrap();
        let level = Level::new(OsString::new(), &facts, false, Some(nobody)).unwrap();
        assert!(!level.may_empty);
        let error = not_of(Some(nobody), &facts).to_string();
        assert!(error.contains(&format!("not to the load's user {nobody}")), "{error}");
    }

    #[test]
    fn a_folder_that_others_can_change_on_the_way_is_found() {
        let parent = tempfile::tempdir().unwrap();
        let open = parent.path().canonicalize().unwrap().join("open");
        fs::create_dir_all(open.join("mine")).unwrap();
        let mode = |mode| fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o777);
        assert_eq!(changeable(&open.join("mine")).unwrap(), Some(open.clone()));
        // As `/tmp` is.
        mode(0o1777);
        assert_eq!(changeable(&open.join("mine")).unwrap(), None);
    }

    #[test]
    fn a_link_that_others_can_change_on_the_way_is_found() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path().canonicalize().unwrap();
        let open = parent.join("open");
        fs::create_dir_all(parent.join("mine/deep")).unwrap();
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        // It leads to a place that nobody else can change, and can be made to lead elsewhere.
        symlink(parent.join("mine"), open.join("link")).unwrap();
        assert_eq!(changeable(&open.join("link/deep")).unwrap(), Some(open.clone()));
        // Nobody else can change the link, but where it leads.
        symlink("../open", parent.join("mine/there")).unwrap();
        assert_eq!(changeable(&parent.join("mine/there")).unwrap(), Some(open));
        symlink("deep/..", parent.join("mine/here")).unwrap();
        assert_eq!(changeable(&parent.join("mine/here/deep")).unwrap(), None);
        symlink("round", parent.join("mine/round")).unwrap();
        let error = changeable(&parent.join("mine/round")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        let error = changeable(&parent.join("mine/none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
