//! Removal of trees that another user may change meanwhile.
//!
//! Root must not remove more than that user could: it unlinks only in folders that belong to the user,
//! and follows neither links nor mounts.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::stat::FileStat;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use super::folder::Folder;

/// How long it may take to empty a folder: other processes may keep filling it.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Device and inode of a folder.
type Identity = (u64, u64);

/// Removes the folder `name` from `folder`, with everything in it that `user` could remove.
pub(in crate::load) fn remove(folder: &Folder, name: &OsStr, user: Option<u32>) -> io::Result<()> {
    let child = match folder.child(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        child => child?,
    };
    if child.mount_id()? != folder.mount_id()? {
        let path = shown(folder, name);
        return Err(io::Error::other(format!("{path}: a mount point: left")));
    }
    let deadline = Instant::now() + TIMEOUT;
    loop {
        empty(&child, user)?;
        match folder.remove_empty(name) {
            // Somebody has created a file meanwhile.
            Err(error)
                if error.kind() == io::ErrorKind::DirectoryNotEmpty
                    && Instant::now() < deadline => {}
            result => return result,
        }
    }
}

/// Removes everything in `folder` that is on the same mount and that `user`, if not the caller, could
/// remove.
///
/// # Errors
/// The first entry that had to be left; all others are removed.
pub(in crate::load) fn empty(folder: &Folder, user: Option<u32>) -> io::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    let mut here = Folder::from_descriptor(folder.descriptor()?);
    let stat = here.stat()?;
    let mut walk = Walk {
        user,
        mount: here.mount_id()?,
        level: Level::new(OsString::new(), &stat, true, user),
        above: Vec::new(),
        first_error: None,
    };
    if !walk.level.may_empty {
        walk.leave(&here, OsStr::new("."), &not_owned_by(user, &stat));
    }
    loop {
        if Instant::now() > deadline {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!(
                    "not empty after {} s: is another process writing to it?",
                    TIMEOUT.as_secs()
                ),
            ));
        }
        match walk.remove_files(&here)? {
            // One descriptor at a time and no recursion: trees may be deeper than either allows.
            Some(child) => here = child,
            None => match walk.up(here)? {
                Some(parent) => here = parent,
                None => return walk.first_error.map_or(Ok(()), Err),
            },
        }
    }
}

/// A walk through a tree that removes it.
struct Walk {
    user: Option<u32>,
    mount: u64,
    level: Level,
    above: Vec<Level>,
    first_error: Option<io::Error>,
}

/// A folder that the walk has entered.
struct Level {
    /// Its name in the folder above.
    name: OsString,
    identity: Identity,
    /// Neither it nor a folder above it belongs to the user.
    ours: bool,
    may_empty: bool,
    /// Entries that have to be left.
    left: HashSet<OsString>,
}

impl Level {
    fn new(name: OsString, stat: &FileStat, in_ours: bool, user: Option<u32>) -> Self {
        let (may_empty, ours) = may_empty(stat.st_uid, geteuid().as_raw(), in_ours, user);
        let identity = (stat.st_dev, stat.st_ino);
        Self { name, identity, ours, may_empty, left: HashSet::new() }
    }
}

/// Whether the content of a folder of `owner` is removed, and whether the folder is one of ours. Folders
/// below the user's are not, whoever owns them: the user may have moved them there.
fn may_empty(owner: u32, me: u32, in_ours: bool, user: Option<u32>) -> (bool, bool) {
    match user {
        None => (true, true),
        Some(user) if owner == user => (true, false),
        Some(_) => (in_ours && owner == me, in_ours && owner == me),
    }
}

fn not_owned_by(user: Option<u32>, stat: &FileStat) -> io::Error {
    let user = user.map_or_else(String::new, |user| format!(", not to the load's user {user}"));
    io::Error::other(format!("it belongs to user {}{user}: left", stat.st_uid))
}

impl Walk {
    /// Removes files and empty folders from `here`; the first folder that is not empty, to enter it.
    fn remove_files(&mut self, here: &Folder) -> io::Result<Option<Folder>> {
        if !self.level.may_empty {
            return Ok(None);
        }
        for entry in fs::read_dir(here.proc_path())? {
            let name = entry?.file_name();
            if self.level.left.contains(&name) {
                continue;
            }
            let unlink = |flag| unlinkat(here, name.as_os_str(), flag);
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

    /// Enters the folder `name` in `here`.
    fn down(&mut self, here: &Folder, name: OsString) -> io::Result<Folder> {
        let child = here.child(&name)?;
        if child.mount_id()? != self.mount {
            return Err(io::Error::other("a mount point: left"));
        }
        let stat = child.stat()?;
        let level = Level::new(name, &stat, self.level.ours, self.user);
        if !level.may_empty {
            return Err(not_owned_by(self.user, &stat));
        }
        self.above.push(std::mem::replace(&mut self.level, level));
        Ok(child)
    }

    /// Goes to the folder above and removes `here` from it; `None` at the top.
    fn up(&mut self, here: Folder) -> io::Result<Option<Folder>> {
        let Some(above) = self.above.pop() else { return Ok(None) };
        let level = std::mem::replace(&mut self.level, above);
        let parent = here.parent()?;
        let stat = parent.stat()?;
        if (stat.st_dev, stat.st_ino) != self.level.identity {
            let name = level.name.display();
            let text = format!("the folder {name} was moved while it was being removed");
            return Err(io::Error::other(text));
        }
        if !level.left.is_empty() {
            self.level.left.insert(level.name);
            return Ok(Some(parent));
        }
        match unlinkat(&parent, level.name.as_os_str(), UnlinkatFlags::RemoveDir) {
            // Filled again meanwhile, or renamed: the folder above is read once more.
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            Err(errno) => self.leave(&parent, &level.name, &errno.into()),
        }
        Ok(Some(parent))
    }

    fn leave(&mut self, here: &Folder, name: &OsStr, why: &io::Error) {
        self.first_error.get_or_insert_with(|| {
            io::Error::new(why.kind(), format!("{}: {why}", shown(here, name)))
        });
        self.level.left.insert(name.to_owned());
    }
}

fn shown(folder: &Folder, name: &OsStr) -> String {
    let path = fs::read_link(folder.proc_path()).unwrap_or_default();
    path.join(name).display().to_string()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;

    use super::*;

    #[test]
    fn in_the_users_folders_only_those_of_the_user_are_emptied() {
        let (root, user, other) = (0, 7, 8);
        // Root removes what it created above all folders of the user.
        assert_eq!(may_empty(root, root, true, Some(user)), (true, true));
        assert_eq!(may_empty(user, root, true, Some(user)), (true, false));
        assert_eq!(may_empty(other, root, true, Some(user)), (false, false));
        // The user may have moved it into a folder of theirs.
        assert_eq!(may_empty(root, root, false, Some(user)), (false, false));
        assert_eq!(may_empty(user, root, false, Some(user)), (true, false));
        // Without another user nothing needs protection.
        for owner in [root, user, other] {
            assert_eq!(may_empty(owner, user, true, None), (true, true));
        }
    }

    fn removed(make: impl FnOnce(&Path)) -> tempfile::TempDir {
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir(parent.path().join("work")).unwrap();
        make(&parent.path().join("work"));
        let folder = Folder::open(parent.path()).unwrap();
        remove(&folder, OsStr::new("work"), None).unwrap();
        assert!(!parent.path().join("work").exists());
        remove(&folder, OsStr::new("work"), None).unwrap();
        parent
    }

    #[test]
    fn folders_without_permissions_are_removed() {
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
    fn a_link_in_the_place_of_the_folder_is_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir(parent.path().join("precious")).unwrap();
        fs::write(parent.path().join("precious/kept"), "x").unwrap();
        symlink("precious", parent.path().join("work")).unwrap();
        let folder = Folder::open(parent.path()).unwrap();
        let removed = remove(&folder, OsStr::new("work"), None);
        assert!(parent.path().join("precious/kept").exists(), "{removed:?}");
        removed.unwrap_err();
    }

    #[test]
    fn a_tree_may_be_wide_and_deeper_than_the_limit_of_open_files() {
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
    fn folders_of_another_user_are_left_and_named() {
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir(parent.path().join("work")).unwrap();
        fs::write(parent.path().join("work/file"), "x").unwrap();
        let nobody = geteuid().as_raw() + 1;
        let folder = Folder::open(&parent.path().join("work")).unwrap();
        // As one that `nobody` had moved into a folder of theirs.
        let stat = folder.stat().unwrap();
        let level = Level::new(OsString::new(), &stat, false, Some(nobody));
        assert!(!level.may_empty);
        let error = not_owned_by(Some(nobody), &stat).to_string();
        assert!(error.contains(&format!("not to the load's user {nobody}")), "{error}");
    }
}
