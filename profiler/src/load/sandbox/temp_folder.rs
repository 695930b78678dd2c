//! The temporary folder of a load.

use std::io;
use std::path::PathBuf;

use nix::sys::stat::Mode;

use super::folder::{Folder, remove_empty};
use super::removal;
use super::user::LoadUser;

/// A load's folder for temporary files, removed when this is dropped.
#[derive(Debug)]
pub(super) struct TempFolder {
    path: PathBuf,
    folder: Folder,
    /// The owner, if not the caller.
    user: Option<u32>,
}

impl TempFolder {
    /// Creates it at `path`, for `user`.
    pub(super) fn create(path: PathBuf, user: Option<&LoadUser>) -> io::Result<Self> {
        let folder = Folder::create(&path)?;
        folder.hand_over(user, Mode::S_IRWXU)?;
        Ok(Self { path, folder, user: user.map(|user| user.uid) })
    }

    /// The folder at `path`, which belongs to `user`.
    pub(super) fn open(path: PathBuf, user: Option<u32>) -> io::Result<Self> {
        Ok(Self { folder: Folder::open(&path)?, path, user })
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // There is no one to report an error to. Files of other users that were moved there stay.
        let _ = removal::empty(&self.folder, self.user).and_then(|()| remove_empty(&self.path));
    }
}
