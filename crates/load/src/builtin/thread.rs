//! Operations of a thread on itself: its name, credentials, memory and mounts.

use std::fs;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::memfd::{self, MFdFlags};
use nix::sys::mman::ProtFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use rustix::thread::{NanosleepRelativeResult, Timespec, set_thread_uid};

use super::worker::{NewWorker, OperationErrors, Shared, Worker, failed, simple, unavailable};
use crate::syscalls;

pub(super) fn memfd_create() -> Result<(), OperationErrors> {
    let file = memfd::memfd_create(c"profiler-load", MFdFlags::MFD_CLOEXEC);
    file.map(drop).map_err(failed("memfd_create"))
}

/// A new name each time: a driver may look at changes only.
pub(super) fn prctl() -> NewWorker {
    let mut names = [c"load-prctl-a", c"load-prctl-b"];
    simple(move || {
        names.swap(0, 1);
        let [name, _] = names;
        nix::sys::prctl::set_name(name).map_err(failed("PR_SET_NAME"))
    })
}

/// Makes a page executable, and every other time writable too: each call changes something and asks for
/// `PROT_EXEC`, which drivers look at.
pub(super) fn mprotect() -> NewWorker {
    let mut page =
        syscalls::Page::new(ProtFlags::empty()).map_err(unavailable("a page of memory"))?;
    let mut writable = true;
    simple(move || {
        writable = !writable;
        page.make_executable(writable).map_err(failed("mprotect with PROT_EXEC"))
    })
}

/// `nanosleep` itself: the C library's calls `clock_nanosleep`.
pub(super) fn nanosleep() -> Result<(), OperationErrors> {
    match rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 1 }) {
        NanosleepRelativeResult::Err(errno) => Err(failed("nanosleep")(errno)),
        _ => Ok(()),
    }
}

/// Sets the user id of the thread alone to the one it has: new credentials are committed, with the same rights.
pub(super) fn update_cred() -> Result<(), OperationErrors> {
    set_thread_uid(rustix::process::geteuid()).map_err(failed("setuid"))
}

const MODPROBE: &str = "/proc/sys/kernel/modprobe";

/// A socket of a family that does not exist, for which the kernel starts modprobe in vain.
pub(super) fn call_usermodehelper() -> NewWorker {
    let program = fs::read_to_string(MODPROBE);
    let program = program
        .map_err(unavailable("this kernel does not start modprobe (/proc/sys/kernel/modprobe)"))?;
    if program.trim().is_empty() {
        return Err(format!(
            "{MODPROBE} is empty, so the kernel starts no program: `echo /sbin/modprobe >{MODPROBE}`"
        ));
    }
    simple(|| match socket(AddressFamily::Unspec, SockType::Stream, SockFlag::SOCK_CLOEXEC, None) {
        Ok(_) | Err(Errno::EAFNOSUPPORT) => Ok(()),
        Err(errno) => Err(failed("a socket of no family")(errno)),
    })
}

struct Mount {
    at: PathBuf,
    mounted: bool,
}

/// A tmpfs in a mount namespace of this thread, which ends with it.
pub(super) fn mount_anew(shared: &Shared, index: u32) -> NewWorker {
    let at = shared.directory.join(format!("worker-{index}"));
    fs::create_dir(&at).map_err(unavailable(at.to_string_lossy()))?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| {
        format!("a mount namespace of its own: {} ({errno:?}): run it as root", errno.desc())
    })?;
    // Mounts made here must not propagate to the namespace that it came from.
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(unavailable("make the mounts private"))?;
    Ok(Box::new(Mount { at, mounted: false }))
}

impl Worker for Mount {
    fn prepare(&mut self) -> Result<(), OperationErrors> {
        if self.mounted {
            umount2(&self.at, MntFlags::MNT_DETACH).map_err(failed("unmount"))?;
            self.mounted = false;
        }
        Ok(())
    }

    fn operate(&mut self) -> Result<(), OperationErrors> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("profiler-load"), &self.at, Some("tmpfs"), flags, Some("size=4k"))
            .map_err(failed("mount a tmpfs"))?;
        self.mounted = true;
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The folder can only be removed once nothing is mounted on it in any namespace.
        let _ = self.prepare();
    }
}
