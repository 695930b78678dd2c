//! Operations on files, in the load's private directory.

use std::ffi::CString;
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::worker::{OperationError, Shared, Worker};
use crate::recording::loads::OwnCalls;

/// The files of one worker.
struct Place {
    directory: OwnedFd,
    /// Each worker reuses its own names, so the kernel's cache of names does not grow.
    name: CString,
    other: CString,
}

impl Place {
    fn new(shared: &Shared, index: u32) -> Result<Self, String> {
        let directory = shared.directory.as_ref().ok_or("it has no directory")?.path();
        let name = |name: String| CString::new(name).map_err(|error| error.to_string());
        let opened = File::open(directory);
        let opened = opened.map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(Self {
            directory: opened.into(),
            name: name(format!("worker-{index}"))?,
            other: name(format!("worker-{index}-other"))?,
        })
    }

    fn create(&self, calls: &mut OwnCalls) -> nix::Result<OwnedFd> {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        calls.open_create += 1;
        openat(&self.directory, self.name.as_c_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)
    }

    /// With the file `name` in it, for those that work on one.
    fn with_file(
        shared: &Shared,
        index: u32,
        calls: &mut OwnCalls,
    ) -> Result<(Self, File), String> {
        let place = Self::new(shared, index)?;
        match place.create(calls) {
            Ok(file) => Ok((place, file.into())),
            Err(errno) => Err(format!("create a file: {}", errno.desc())),
        }
    }
}

fn failed(doing: &'static str) -> impl Fn(Errno) -> OperationError {
    move |errno| OperationError::new(doing, errno)
}

pub(super) struct Create(Place);

impl Create {
    pub(super) fn new(shared: &Shared, index: u32) -> Result<Self, String> {
        Place::new(shared, index).map(Self)
    }
}

impl Worker for Create {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        let Self(place) = self;
        drop(place.create(calls).map_err(failed("create a file"))?);
        calls.unlink += 1;
        unlinkat(&place.directory, place.name.as_c_str(), UnlinkatFlags::NoRemoveDir)
            .map_err(failed("unlink the file"))
    }
}

pub(super) struct Rename(Place);

impl Rename {
    pub(super) fn new(shared: &Shared, index: u32, calls: &mut OwnCalls) -> Result<Self, String> {
        Place::with_file(shared, index, calls).map(|(place, _)| Self(place))
    }
}

impl Worker for Rename {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        let Place { directory, name, other } = &mut self.0;
        calls.rename += 1;
        renameat(&*directory, name.as_c_str(), &*directory, other.as_c_str())
            .map_err(failed("rename a file"))?;
        // The next rename goes back.
        std::mem::swap(name, other);
        Ok(())
    }
}

/// A second name for a file, created by `link` and removed by `unlink`. One of the two is measured, the
/// other prepares it.
pub(super) struct SecondName {
    place: Place,
    measured: Measured,
    there: bool,
}

/// Which half of the pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Measured {
    Link,
    Unlink,
}

impl SecondName {
    pub(super) fn new(
        shared: &Shared,
        index: u32,
        measured: Measured,
        calls: &mut OwnCalls,
    ) -> Result<Self, String> {
        let (place, _) = Place::with_file(shared, index, calls)?;
        Ok(Self { place, measured, there: false })
    }

    /// Creates or removes the name.
    fn make(&mut self, there: bool, calls: &mut OwnCalls) -> Result<(), OperationError> {
        if there == self.there {
            return Ok(());
        }
        let Place { directory, name, other } = &self.place;
        if there {
            calls.link += 1;
            linkat(directory, name.as_c_str(), directory, other.as_c_str(), AtFlags::empty())
                .map_err(failed("link a file"))?;
        } else {
            calls.unlink += 1;
            unlinkat(directory, other.as_c_str(), UnlinkatFlags::NoRemoveDir)
                .map_err(failed("unlink a file"))?;
        }
        self.there = there;
        Ok(())
    }
}

impl Worker for SecondName {
    fn prepare(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        self.make(self.measured == Measured::Unlink, calls)
    }

    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        self.make(self.measured == Measured::Link, calls)
    }
}

pub(super) struct Rmdir(Place);

impl Rmdir {
    pub(super) fn new(shared: &Shared, index: u32) -> Result<Self, String> {
        Place::new(shared, index).map(Self)
    }
}

impl Worker for Rmdir {
    fn prepare(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        match mkdirat(&self.0.directory, self.0.name.as_c_str(), Mode::S_IRWXU) {
            Err(errno) if errno != Errno::EEXIST => Err(failed("make a folder")(errno)),
            _ => Ok(()),
        }
    }

    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.rmdir += 1;
        unlinkat(&self.0.directory, self.0.name.as_c_str(), UnlinkatFlags::RemoveDir)
            .map_err(failed("remove a folder"))
    }
}

/// What is written each time: always to the beginning, so that the file does not grow. It ends with a NUL: a driver that
/// takes what is written for a string, as Elkeid does, else reads on beyond it, which takes as long as chance has it.
const WRITTEN: &[u8; 64] = b"one operation of the built-in load `write`, of sixty-four bytes\0";

pub(super) struct Write(File);

impl Write {
    pub(super) fn new(shared: &Shared, index: u32, calls: &mut OwnCalls) -> Result<Self, String> {
        Place::with_file(shared, index, calls).map(|(_, file)| Self(file))
    }
}

impl Worker for Write {
    fn prepare(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        let back = self.0.seek(SeekFrom::Start(0));
        back.map(drop).map_err(|error| OperationError::of_io("seek in a file", &error))
    }

    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.write += 1;
        match self.0.write(WRITTEN) {
            Ok(length) if length == WRITTEN.len() => Ok(()),
            Ok(length) => {
                let text = format!("wrote {length} bytes instead of {}", WRITTEN.len());
                Err(OperationError { kind: "wrong length".to_owned(), text })
            }
            Err(error) => Err(OperationError::of_io("write to a file", &error)),
        }
    }
}
