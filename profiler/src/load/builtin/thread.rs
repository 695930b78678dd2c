//! Operations of a thread on itself: its name, credentials, memory and mounts.

use std::ffi::CStr;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::worker::{OperationError, Shared, Worker};
use crate::load::syscalls;
use crate::recording::loads::OwnCalls;

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

/// A new name each time: a driver may look at changes only.
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

/// Makes a page executable, and every other time writable too: each call changes something and asks for
/// `PROT_EXEC`, which drivers look at.
pub(super) struct Mprotect {
    page: syscalls::Page,
    writable: bool,
}

impl Mprotect {
    pub(super) fn new() -> Result<Self, String> {
        let page = syscalls::Page::new().map_err(|error| format!("a page of memory: {error}"))?;
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
        syscalls::nanosleep(Duration::from_nanos(1))
            .map_err(|error| OperationError::of_io("nanosleep", &error))
    }
}

/// Sets the thread's user id to the one it has: new credentials are committed, with the same rights.
pub(super) struct UpdateCred;

impl Worker for UpdateCred {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.commit_creds += 1;
        syscalls::setuid_of_thread(nix::unistd::geteuid())
            .map_err(|error| OperationError::of_io("setuid", &error))
    }
}

/// A socket of a family that does not exist, for which the kernel starts modprobe in vain.
pub(super) struct CallUsermodehelper;

const MODPROBE: &str = "/proc/sys/kernel/modprobe";

impl CallUsermodehelper {
    pub(super) fn new() -> Result<Self, String> {
        match fs::read_to_string(MODPROBE) {
            Ok(path) if path.trim().is_empty() => Err(format!(
                "{MODPROBE} is empty, so the kernel starts no program: \
                 `echo /sbin/modprobe >{MODPROBE}`"
            )),
            Ok(_) => Ok(Self),
            Err(error) => Err(format!("this kernel does not start modprobe ({MODPROBE}: {error})")),
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

/// A tmpfs in a mount namespace of this thread, which ends with it.
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
        // Mounts made here must not propagate to the namespace that it came from.
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
        // The folder can only be removed once nothing is mounted on it in any namespace.
        let _ = self.prepare(&mut OwnCalls::default());
    }
}
