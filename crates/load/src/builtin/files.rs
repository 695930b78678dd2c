//! Operations on files, in the load's private directory.

use std::ffi::CString;
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::worker::{
    NewWorker, OperationErrors, Shared, Worker, c_string, failed, simple, unavailable,
};

/// The files of one worker.
struct Place {
    directory: OwnedFd,
    /// Each worker reuses its own names, so the kernel's cache of names does not grow.
    name: CString,
    other: CString,
}

impl Place {
    fn new(shared: &Shared, index: u32) -> Result<Self, String> {
        let directory = &shared.directory;
        let opened = File::open(directory).map_err(unavailable(directory.to_string_lossy()))?;
        Ok(Self {
            directory: opened.into(),
            name: c_string(format!("worker-{index}"))?,
            other: c_string(format!("worker-{index}-other"))?,
        })
    }

    /// With the file `name` in it, for those that work on one.
    fn with_file(shared: &Shared, index: u32) -> Result<(Self, File), String> {
        let place = Self::new(shared, index)?;
        let file = place.create().map_err(unavailable("create a file"))?;
        Ok((place, file.into()))
    }

    fn create(&self) -> nix::Result<OwnedFd> {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        openat(&self.directory, self.name.as_c_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)
    }
}

pub(super) fn create(shared: &Shared, index: u32) -> NewWorker {
    let place = Place::new(shared, index)?;
    simple(move || {
        drop(place.create().map_err(failed("create a file"))?);
        unlinkat(&place.directory, place.name.as_c_str(), UnlinkatFlags::NoRemoveDir)
            .map_err(failed("unlink the file"))
    })
}

pub(super) fn rename(shared: &Shared, index: u32) -> NewWorker {
    let (Place { directory, mut name, mut other }, _) = Place::with_file(shared, index)?;
    simple(move || {
        renameat(&directory, name.as_c_str(), &directory, other.as_c_str())
            .map_err(failed("rename a file"))?;
        // The next rename goes back.
        std::mem::swap(&mut name, &mut other);
        Ok(())
    })
}

/// A second name for a file, created by `link` and removed by `unlink`. One of the two is measured, the
/// other prepares it.
struct SecondName {
    place: Place,
    /// Whether `link` is.
    links: bool,
    there: bool,
}

pub(super) fn second_name(shared: &Shared, index: u32, links: bool) -> NewWorker {
    let (place, _) = Place::with_file(shared, index)?;
    Ok(Box::new(SecondName { place, links, there: false }))
}

impl SecondName {
    /// Creates or removes the name.
    fn make(&mut self, there: bool) -> Result<(), OperationErrors> {
        if there == self.there {
            return Ok(());
        }
        let Place { directory, name, other } = &self.place;
        if there {
            linkat(directory, name.as_c_str(), directory, other.as_c_str(), AtFlags::empty())
                .map_err(failed("link a file"))?;
        } else {
            unlinkat(directory, other.as_c_str(), UnlinkatFlags::NoRemoveDir)
                .map_err(failed("unlink a file"))?;
        }
        self.there = there;
        Ok(())
    }
}

impl Worker for SecondName {
    fn prepare(&mut self) -> Result<(), OperationErrors> {
        self.make(!self.links)
    }

    fn operate(&mut self) -> Result<(), OperationErrors> {
        self.make(self.links)
    }
}

struct Rmdir(Place);

pub(super) fn rmdir(shared: &Shared, index: u32) -> NewWorker {
    Ok(Box::new(Rmdir(Place::new(shared, index)?)))
}

impl Worker for Rmdir {
    fn prepare(&mut self) -> Result<(), OperationErrors> {
        match mkdirat(&self.0.directory, self.0.name.as_c_str(), Mode::S_IRWXU) {
            Err(errno) if errno != Errno::EEXIST => Err(failed("make a folder")(errno)),
            _ => Ok(()),
        }
    }

    fn operate(&mut self) -> Result<(), OperationErrors> {
        unlinkat(&self.0.directory, self.0.name.as_c_str(), UnlinkatFlags::RemoveDir)
            .map_err(failed("remove a folder"))
    }
}

/// What is written each time: always to the beginning, so that the file does not grow. It ends with a NUL: a driver that
/// reads it as a string, as Elkeid does, would read past it otherwise, for a random time.
const WRITTEN: &[u8; 64] = b"one operation of the built-in load `write`, of sixty-four bytes\0";

struct Write(File);

pub(super) fn write(shared: &Shared, index: u32) -> NewWorker {
    Ok(Box::new(Write(Place::with_file(shared, index)?.1)))
}

impl Worker for Write {
    fn prepare(&mut self) -> Result<(), OperationErrors> {
        self.0.seek(SeekFrom::Start(0)).map(drop).map_err(failed("seek in a file"))
    }

    fn operate(&mut self) -> Result<(), OperationErrors> {
        let length = self.0.write(WRITTEN).map_err(failed("write to a file"))?;
        if length == WRITTEN.len() {
            return Ok(());
        }
        let text = format!("wrote {length} bytes instead of {}", WRITTEN.len());
        Err(OperationErrors::one("wrong length", text))
    }
}
