//! Folders that a load's user may write to, accessed by root through descriptors only, never by a path
//! through them.
//!
//! The owner of a folder can rename it, replace it by a link or move other folders into it at any time.
//! Descriptors keep root from being led elsewhere.

use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, geteuid, mkdir, unlinkat};

use super::user::LoadUser;

/// Mode of a folder in which the load's user, and the users that LTP's tests switch to, create files.
pub(in crate::load) const MODE_FOR_ALL: Mode = Mode::from_bits_truncate(0o1777);

/// An open folder.
#[derive(Debug)]
pub(in crate::load) struct Folder(OwnedFd);

impl Folder {
    /// Opens the folder at `path`, which must not be a link.
    pub(in crate::load) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(open(path, flags(), Mode::empty())?))
    }

    /// The folder of an open descriptor.
    pub(super) fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// A copy of its descriptor.
    pub(in crate::load) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Creates the folder at `path`, for this user only.
    pub(in crate::load) fn create(path: &Path) -> io::Result<Self> {
        mkdir(path, Mode::S_IRWXU)?;
        let folder = Self::open(path)?;
        // The owner of the folder that it is in may have exchanged it.
        if folder.stat()?.st_uid != geteuid().as_raw() {
            return Err(io::Error::other("it was replaced by another user's"));
        }
        Ok(folder)
    }

    /// Opens its entry `name`, which must be a folder and no link.
    pub(super) fn child(&self, name: &OsStr) -> io::Result<Self> {
        match openat(&self.0, name, flags(), Mode::empty()) {
            Err(Errno::EACCES) => {
                // The owner removed the permissions. Changed by descriptor: the name may lead elsewhere.
                let flags_of_place = OFlag::O_PATH | OFlag::O_DIRECTORY | NO_LINK;
                let place = Self(openat(&self.0, name, flags_of_place, Mode::empty())?);
                let own = std::os::unix::fs::PermissionsExt::from_mode(0o700);
                fs::set_permissions(place.proc_path(), own)?;
                Ok(Self(openat(&self.0, name, flags(), Mode::empty())?))
            }
            result => Ok(Self(result?)),
        }
    }

    /// Opens the folder above it.
    pub(super) fn parent(&self) -> io::Result<Self> {
        Ok(Self(openat(&self.0, "..", flags(), Mode::empty())?))
    }

    /// Creates the folder `name` in it, for this user only. No other user may be able to write to `self`.
    pub(in crate::load) fn make(&self, name: &OsStr) -> io::Result<Self> {
        mkdirat(&self.0, name, Mode::S_IRWXU)?;
        Ok(Self(openat(&self.0, name, flags(), Mode::empty())?))
    }

    pub(in crate::load) fn set_mode(&self, mode: Mode) -> io::Result<()> {
        Ok(fchmod(&self.0, mode)?)
    }

    /// Sets its mode, then its owner, who alone can change the mode afterwards.
    pub(in crate::load) fn hand_over(&self, user: Option<&LoadUser>, mode: Mode) -> io::Result<()> {
        self.set_mode(mode)?;
        let Some(user) = user else { return Ok(()) };
        Ok(fchown(&self.0, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?)
    }

    pub(super) fn stat(&self) -> io::Result<FileStat> {
        Ok(fstat(&self.0)?)
    }

    /// Device and inode: no other folder has both while this one is open.
    pub(in crate::load) fn id(&self) -> io::Result<(u64, u64)> {
        let stat = self.stat()?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Its path now; `None` if it has been removed.
    pub(in crate::load) fn path(&self) -> io::Result<Option<PathBuf>> {
        let removed = self.stat()?.st_nlink == 0;
        Ok(if removed { None } else { Some(fs::read_link(self.proc_path())?) })
    }

    /// A path below `/proc` that leads to it wherever it is now, for calls that take no descriptor.
    pub(in crate::load) fn proc_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// Opens what `path` below it leads to, of whatever type, without following links (`O_PATH`). What
    /// is mounted there is opened instead of the mount point.
    pub(in crate::load) fn place(&self, path: &Path) -> io::Result<Self> {
        let mut here = self.descriptor()?;
        for name in path.components() {
            here = openat(&here, name.as_os_str(), OFlag::O_PATH | NO_LINK, Mode::empty())?;
        }
        Ok(Self(here))
    }

    /// The id of the mount that it is on, as in `/proc/self/mountinfo`.
    pub(in crate::load) fn mount_id(&self) -> io::Result<u64> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.as_raw_fd()))?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
        id.ok_or_else(|| io::Error::other("/proc/self/fdinfo has no mnt_id"))
    }

    /// Removes the empty folder `name` from it, if it exists.
    pub(in crate::load) fn remove_empty(&self, name: &OsStr) -> io::Result<()> {
        remove_empty_at(self.as_fd(), Path::new(name))
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const NO_LINK: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_CLOEXEC);

fn flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | NO_LINK
}

/// `prefix` and 16 random hexadecimal digits: the name of a folder that is created later.
pub(in crate::load) fn unused_name(prefix: &str) -> String {
    format!("{prefix}{:016x}", RandomState::new().build_hasher().finish())
}

/// Removes the empty folder at `path`, if it exists, whoever owns it.
pub(in crate::load) fn remove_empty(path: &Path) -> io::Result<()> {
    remove_empty_at(AT_FDCWD, path)
}

fn remove_empty_at(folder: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    match unlinkat(folder, path, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
