//! Operations of a thread on itself: its name, memory and mounts.

use std::fs;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::CloneFlags;
use nix::sys::mman::ProtFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use rustix::thread::{NanosleepRelativeResult, Timespec};

use super::worker::{Doing as _, NewWorker, OperationErrors, Step, new_namespace, refused, simple};
use crate::syscalls;

/// A new name each time: a driver may look at changes only.
pub(super) fn prctl() -> NewWorker {
    let mut names = [c"load-prctl-a", c"load-prctl-b"];
    simple(move || {
        names.swap(0, 1);
        let [name, _] = names;
        nix::sys::prctl::set_name(name).doing("PR_SET_NAME")
    })
}

/// Makes a page executable, and every other time writable too: each call changes something and asks for
/// `PROT_EXEC`, which drivers look at.
pub(super) fn mprotect() -> NewWorker {
    let mut page = syscalls::Page::new(ProtFlags::empty()).doing("a page of memory")?;
    let mut writable = true;
    simple(move || {
        writable = !writable;
        page.make_executable(writable).doing("mprotect with PROT_EXEC")
    })
}

/// `nanosleep` itself: the C library's calls `clock_nanosleep`.
pub(super) fn nanosleep() -> Result<(), OperationErrors> {
    match rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 1 }) {
        NanosleepRelativeResult::Err(errno) => Err(errno).doing("nanosleep"),
        _ => Ok(()),
    }
}

const MODPROBE: &str = "/proc/sys/kernel/modprobe";

/// A socket of a family that does not exist, for which the kernel starts modprobe in vain.
pub(super) fn call_usermodehelper() -> NewWorker {
    let program = fs::read_to_string(MODPROBE)
        .doing(format_args!("this kernel does not start modprobe ({MODPROBE})"))?;
    if program.trim().is_empty() {
        return Err(refused(format!(
            "{MODPROBE} is empty, so the kernel starts no program: `echo /sbin/modprobe >{MODPROBE}`"
        )));
    }
    simple(|| match socket(AddressFamily::Unspec, SockType::Stream, SockFlag::SOCK_CLOEXEC, None) {
        Ok(_) | Err(Errno::EAFNOSUPPORT) => Ok(()),
        Err(errno) => Err(errno).doing("a socket of no family"),
    })
}

struct Mount {
    at: PathBuf,
    mounted: bool,
}

/// A tmpfs in a mount namespace of this thread, which ends with it.
pub(super) fn mount_anew(folder: &Path, index: u32) -> NewWorker {
    let at = folder.join(format!("worker-{index}"));
    fs::create_dir(&at).doing(at.display())?;
    new_namespace(CloneFlags::CLONE_NEWNS, "a mount namespace of its own")?;
    // Mounts made here must not propagate to the namespace that it came from.
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .doing("make the mounts private")?;
    let mut anew = Mount { at, mounted: false };
    Ok(Box::new(move |step| match step {
        Step::Prepare => anew.unmount(),
        Step::Operate => {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount(Some("profiler-load"), &anew.at, Some("tmpfs"), flags, Some("size=4k"))
                .doing("mount a tmpfs")?;
            anew.mounted = true;
            Ok(())
        }
    }))
}

impl Mount {
    fn unmount(&mut self) -> Result<(), OperationErrors> {
        if self.mounted {
            umount2(&self.at, MntFlags::MNT_DETACH).doing("unmount")?;
            self.mounted = false;
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The folder can only be removed once nothing is mounted on it in any namespace.
        let _ = self.unmount();
    }
}
