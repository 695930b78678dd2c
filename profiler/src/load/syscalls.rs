//! System calls that have no safe wrapper: the only `unsafe` of the loads.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use crate::limits;

/// Whether the network interface `name` is up, in the network namespace of `socket`.
///
/// Neither from `/sys/class/net`, which may be of another network namespace, nor by `getifaddrs`, whose
/// netlink socket would call `bind`.
pub(super) fn interface_is_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    // SAFETY: all-zero bytes are a valid `ifreq`: integers, pointers and arrays of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0 and terminates the name.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name.iter_mut().take(room).zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: the descriptor is open while borrowed, and SIOCGIFFLAGS reads and writes one `ifreq`.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFFLAGS answers in this field of the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(libc::c_int::from(flags) & libc::IFF_UP != 0)
}

/// Has the kernel kill the calling process when the thread that started it ends.
fn die_with(parent: nix::unistd::Pid) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // If the parent died before the line above, no signal comes.
    if nix::unistd::getppid() != parent {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

/// Has the kernel kill the process started by `command` when the calling thread ends, which must outlive
/// it unless the whole program ends.
pub(crate) fn dying_with_parent(command: &mut Command) {
    let parent = nix::unistd::getpid();
    // SAFETY: between fork and exec the closure makes plain system calls only (prctl, getppid): no
    // allocation, no lock.
    unsafe { command.pre_exec(move || die_with(parent)) };
}

/// Gives the process started by `command`, and what that starts, the limits that this program was started with.
pub(super) fn with_own_limits(command: &mut Command) {
    let put_back = || limits::put_back().map_err(io::Error::from);
    // SAFETY: between fork and exec the closure makes plain system calls only (setrlimit): no allocation, no lock.
    unsafe { command.pre_exec(put_back) };
}

/// Waits until one of `descriptors` is readable or closed by the other side, or for `limit`; says of each
/// whether it is. A signal may end the wait early.
pub(super) fn wait_readable<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    limit: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = descriptors.map(|descriptor| libc::pollfd {
        fd: descriptor.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let limit_ms = match limit {
        None => -1,
        // Rounded up: less than a millisecond must not become a busy loop.
        Some(limit) => i32::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX),
    };
    // SAFETY: the array has N valid entries and outlives the call.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, limit_ms) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        return Ok([false; N]);
    }
    Ok(polled.map(|entry| entry.revents != 0))
}

/// Reaps one child that has ended; `None` if none has.
///
/// Not nix's `waitpid`, which reaps a child killed by a real-time signal and returns an error.
pub(super) fn reap_any() -> io::Result<Option<(libc::pid_t, ExitStatus)>> {
    let mut status = 0;
    // SAFETY: the status is a valid place for the call to write to.
    match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some((pid, ExitStatus::from_raw(status)))),
    }
}

/// Detaches the file of a loop device.
pub(super) fn detach_loop(device: &std::path::Path) -> io::Result<()> {
    /// `LOOP_CLR_FD` of linux/loop.h.
    const CLEAR: libc::c_ulong = 0x4c01;
    let file = std::fs::File::open(device)?;
    // SAFETY: the descriptor is open, and this request takes no argument.
    if unsafe { libc::ioctl(file.as_raw_fd(), CLEAR as _) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Has the process started by `command` join the control group whose `cgroup.procs` is open as `group`,
/// lead a session of its own, with only the signals `blocked`, and be killed by the kernel when the calling
/// thread ends, which must be the only one of its process.
pub(super) fn own_session_dying_with_parent(
    command: &mut Command,
    group: Option<File>,
    blocked: SigSet,
) {
    let parent = nix::unistd::getpid();
    let prepare = move || {
        die_with(parent)?;
        if let Some(mut group) = group.as_ref() {
            // 0 is the writing process. Permission depends on who opened the file.
            group.write_all(b"0")?;
        }
        nix::unistd::setsid()?;
        blocked.thread_set_mask()?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes plain system calls only (write, prctl, getppid,
    // setsid, sigprocmask): no allocation, no lock.
    unsafe { command.pre_exec(prepare) };
}

/// Forks a child that calls `setsid` and ends, and waits for it.
pub(crate) fn setsid_in_child() -> io::Result<ExitStatus> {
    // SAFETY: the child calls setsid and _exit alone, which are async-signal-safe.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: as above.
        0 => unsafe { libc::_exit(i32::from(libc::setsid() < 0)) },
        child => child,
    };
    let mut status = 0;
    loop {
        // SAFETY: the status is a valid place for the call to write to.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
            return Ok(ExitStatus::from_raw(status));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The error of a system call that failed.
fn checked(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `tkill` of the calling thread with signal 0: nothing is delivered.
pub(super) fn tkill_self() -> io::Result<()> {
    let thread = nix::unistd::gettid().as_raw();
    // SAFETY: plain integers; signal 0 only checks.
    checked(unsafe { libc::syscall(libc::SYS_tkill, thread, 0) })
}

/// Sets the user ids of the calling thread alone; the C library's `setuid` would set all threads'.
pub(super) fn setuid_of_thread(user: nix::unistd::Uid) -> io::Result<()> {
    // SAFETY: a plain integer.
    checked(unsafe { libc::syscall(libc::SYS_setuid, user.as_raw()) })
}

/// `nanosleep` itself: the C library's calls `clock_nanosleep`.
pub(super) fn nanosleep(time: Duration) -> io::Result<()> {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(time.subsec_nanos().cast_signed()),
    };
    let no_rest: *mut libc::timespec = std::ptr::null_mut();
    // SAFETY: the time is valid for the call, and no rest is asked for.
    checked(unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, no_rest) })
}

/// A page of memory.
pub(super) struct Page(*mut libc::c_void);

/// The smallest page size; the kernel rounds up to its own.
const PAGE_BYTES: usize = 4096;

impl Page {
    pub(super) fn new() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping at a place of the kernel's choice.
        let page =
            unsafe { libc::mmap(std::ptr::null_mut(), PAGE_BYTES, libc::PROT_READ, flags, -1, 0) };
        if page == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self(page)) }
    }

    /// Makes it readable and executable, and optionally writable.
    pub(super) fn make_executable(&mut self, writable: bool) -> io::Result<()> {
        let write = if writable { libc::PROT_WRITE } else { 0 };
        let protection = libc::PROT_READ | libc::PROT_EXEC | write;
        // SAFETY: the mapping is ours, and nothing else refers to it.
        checked(unsafe { libc::mprotect(self.0, PAGE_BYTES, protection) }.into())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        unsafe { libc::munmap(self.0, PAGE_BYTES) };
    }
}

/// Makes a system call whose arguments no kernel takes; returns what it says.
#[cfg(test)]
pub(crate) fn call_in_vain(
    number: libc::c_long,
    first: libc::c_int,
    second: libc::c_long,
) -> Option<nix::errno::Errno> {
    let first = libc::c_long::from(first);
    // SAFETY: the caller passes no address.
    let result = unsafe { libc::syscall(number, first, second, 0, 0, 0) };
    nix::errno::Errno::result(result).err()
}
