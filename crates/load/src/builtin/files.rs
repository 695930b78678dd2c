//! Operations on files, in the load's private directory.

use std::ffi::CString;
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::worker::{Doing as _, NewWorker, OperationErrors, Step, c_string, is_whole, simple};

/// The files of one worker.
struct Place {
    directory: OwnedFd,
    /// Each worker reuses its own names, so the kernel's cache of names does not grow.
    name: CString,
    other: CString,
}

impl Place {
    fn new(folder: &Path, index: u32) -> Result<Self, OperationErrors> {
        Ok(Self {
            directory: File::open(folder).doing(folder.display())?.into(),
            name: c_string(format!("worker-{index}"))?,
            other: c_string(format!("worker-{index}-other"))?,
        })
    }

    fn create(&self) -> Result<OwnedFd, OperationErrors> {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        openat(&self.directory, self.name.as_c_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)
            .doing("create a file")
    }
}

pub(super) fn create(folder: &Path, index: u32) -> NewWorker {
    let place = Place::new(folder, index)?;
    simple(move || {
        drop(place.create()?);
        unlinkat(&place.directory, place.name.as_c_str(), UnlinkatFlags::NoRemoveDir)
            .doing("unlink the file")
    })
}

pub(super) fn rename(folder: &Path, index: u32) -> NewWorker {
    let place = Place::new(folder, index)?;
    place.create()?;
    let Place { directory, mut name, mut other } = place;
    simple(move || {
        renameat(&directory, name.as_c_str(), &directory, other.as_c_str())
            .doing("rename a file")?;
        // The next rename goes back.
        std::mem::swap(&mut name, &mut other);
        Ok(())
    })
}

/// A second name for a file, created by `link` and removed by `unlink`. One of the two is measured, the
/// other prepares it.
pub(super) fn second_name(folder: &Path, index: u32, links: bool) -> NewWorker {
    let place = Place::new(folder, index)?;
    place.create()?;
    let Place { directory, name, other } = place;
    let mut is_there = false;
    Ok(Box::new(move |step| {
        let wanted = links == (step == Step::Operate);
        if wanted == is_there {
            return Ok(());
        }
        if wanted {
            linkat(&directory, name.as_c_str(), &directory, other.as_c_str(), AtFlags::empty())
                .doing("link a file")?;
        } else {
            unlinkat(&directory, other.as_c_str(), UnlinkatFlags::NoRemoveDir)
                .doing("unlink a file")?;
        }
        is_there = wanted;
        Ok(())
    }))
}

pub(super) fn rmdir(folder: &Path, index: u32) -> NewWorker {
    let Place { directory, name, .. } = Place::new(folder, index)?;
    Ok(Box::new(move |step| match step {
        Step::Prepare => match mkdirat(&directory, name.as_c_str(), Mode::S_IRWXU) {
            Err(Errno::EEXIST) => Ok(()),
            made => made.doing("make a folder"),
        },
        Step::Operate => {
            unlinkat(&directory, name.as_c_str(), UnlinkatFlags::RemoveDir).doing("remove a folder")
        }
    }))
}

/// What is written each time: always to the beginning, so that the file does not grow. It ends with a NUL: a driver that
/// reads it as a string, as Elkeid does, would read past it otherwise, for a random time.
const WRITTEN: &[u8; 64] = b"one operation of the built-in load `write`, of sixty-four bytes\0";

pub(super) fn write(folder: &Path, index: u32) -> NewWorker {
    let mut file = File::from(Place::new(folder, index)?.create()?);
    Ok(Box::new(move |step| match step {
        Step::Prepare => file.seek(SeekFrom::Start(0)).map(drop).doing("seek in a file"),
        Step::Operate => {
            let length = file.write(WRITTEN).doing("write to a file")?;
            is_whole("wrote", length, WRITTEN.len())
        }
    }))
}
