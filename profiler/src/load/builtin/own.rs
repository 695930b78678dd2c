//! Operations of a thread on itself, its memory and its view of the file systems.

use std::ffi::CStr;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::{OperationError, OwnCalls, Shared, Worker};
use crate::load::sys;

pub(super) struct MemfdCreate;

impl Worker for MemfdCreate {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.memfd_create += 1;
        match memfd_create(c"profiler-load", MFdFlags::MFD_CLOEXEC) {
            Ok(_) => Ok(()),
            Err(errno) => Err(OperationError::new("memfd_create", errno)),
        }
    }
}

/// A name that is another one each time: a driver may look at changes alone.
pub(super) struct Prctl {
    names: [&'static CStr; 2],
}

impl Prctl {
    pub(super) fn new() -> Self {
        Self { names: [c"load-prctl-a", c"load-prctl-b"] }
    }
}

impl Worker for Prctl {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        self.names.swap(0, 1);
        let [name, _] = self.names;
        calls.prctl += 1;
        nix::sys::prctl::set_name(name).map_err(|errno| OperationError::new("PR_SET_NAME", errno))
    }
}

/// A page that is executable and readable, and every other time writable too: each call changes
/// something and asks for `PROT_EXEC`, which is what drivers look at.
pub(super) struct Mprotect {
    page: sys::Page,
    writable: bool,
}

impl Mprotect {
    pub(super) fn new() -> Result<Self, String> {
        let page = sys::Page::new().map_err(|error| format!("a page of memory: {error}"))?;
        Ok(Self { page, writable: true })
    }
}

impl Worker for Mprotect {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.mprotect += 1;
        self.writable = !self.writable;
        self.page
            .make_executable(self.writable)
            .map_err(|error| OperationError::of_io("mprotect with PROT_EXEC", &error))
    }
}

pub(super) struct Nanosleep;

impl Worker for Nanosleep {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.nanosleep += 1;
        sys::nanosleep(Duration::from_nanos(1))
            .map_err(|error| OperationError::of_io("nanosleep", &error))
    }
}

/// The thread takes the user id that it has: new credentials are committed, and nobody gains by them.
pub(super) struct UpdateCred;

impl Worker for UpdateCred {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.commit_creds += 1;
        sys::setuid_of_thread(nix::unistd::geteuid())
            .map_err(|error| OperationError::of_io("setuid", &error))
    }
}

/// A socket of a family that does not exist: the kernel starts modprobe to look for it, in vain.
pub(super) struct CallUsermodehelper;

const MODPROBE: &str = "/proc/sys/kernel/modprobe";

impl CallUsermodehelper {
    pub(super) fn new() -> Result<Self, String> {
        match fs::read_to_string(MODPROBE) {
            Ok(path) if path.trim().is_empty() => Err(format!(
                "{MODPROBE} is empty, so that the kernel starts no program; \
                 `echo /sbin/modprobe >{MODPROBE}` lets it"
            )),
            Ok(_) => Ok(Self),
            Err(error) => {
                Err(format!("this kernel loads no modules by itself ({MODPROBE}: {error})"))
            }
        }
    }
}

impl Worker for CallUsermodehelper {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.usermodehelper += 1;
        match socket(AddressFamily::Unspec, SockType::Stream, SockFlag::SOCK_CLOEXEC, None) {
            Ok(_) => Ok(()),
            Err(Errno::EAFNOSUPPORT) => Ok(()),
            Err(errno) => Err(OperationError::new("a socket of no family", errno)),
        }
    }
}

/// A file system in memory, mounted where this thread alone sees it: its mount namespace ends with it.
pub(super) struct Mount {
    at: PathBuf,
    mounted: bool,
}

impl Mount {
    pub(super) fn new(shared: &Shared, index: u32, calls: &mut OwnCalls) -> Result<Self, String> {
        let directory = shared.directory.as_ref().ok_or("it has no directory")?.path();
        let at = directory.join(format!("worker-{index}"));
        fs::create_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| {
            format!("a mount namespace of its own: {} ({errno:?}): run it as root", errno.desc())
        })?;
        // Nothing that is mounted here may reach the namespace that it came from.
        calls.mount += 1;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
            .map_err(|errno| format!("make the mounts private: {}", errno.desc()))?;
        Ok(Self { at, mounted: false })
    }
}

impl Worker for Mount {
    fn prepare(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        if self.mounted {
            umount2(&self.at, MntFlags::MNT_DETACH)
                .map_err(|errno| OperationError::new("unmount", errno))?;
            self.mounted = false;
        }
        Ok(())
    }

    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.mount += 1;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("profiler-load"), &self.at, Some("tmpfs"), flags, Some("size=4k"))
            .map_err(|errno| OperationError::new("mount a tmpfs", errno))?;
        self.mounted = true;
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The folder can only be removed once it is no mount point, in this namespace either.
        let _ = self.prepare(&mut OwnCalls::default());
    }
}
