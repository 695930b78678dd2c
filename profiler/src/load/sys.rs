//! The few system calls that no safe wrapper offers: the only `unsafe` of the loads.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// Whether the network interface `name` is up, asked through any `socket` in its network namespace.
///
/// Not read from `/sys/class/net`, which may show another network namespace than the caller's; and not
/// by `getifaddrs`, whose netlink socket would call `bind`.
pub(super) fn interface_is_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    // SAFETY: all-zero bytes are a valid `ifreq`: integers, pointers and arrays of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0: the kernel wants the name terminated.
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

/// Waits until one of `descriptors` can be read or has been closed by the other side, or for `limit`;
/// says of each whether it has. A signal may end the wait early.
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
        // Rounded up: a rest below a millisecond must not become a busy loop.
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

/// Takes in one child that has ended, with its status; `None` when all are still alive.
///
/// Not nix's `waitpid`, which takes a child killed by a real-time signal and then loses it in an error.
pub(super) fn reap_any() -> io::Result<Option<(libc::pid_t, ExitStatus)>> {
    let mut status = 0;
    // SAFETY: the status is a valid place for the call to write to.
    match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some((pid, ExitStatus::from_raw(status)))),
    }
}

/// Makes the process started by `command` lead a session of its own, with no signal blocked, and be
/// killed with the calling thread, which must be the only one of its process.
pub(super) fn own_session_dying_with_parent(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let prepare = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the line above: then no signal comes.
        if nix::unistd::getppid() != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        nix::unistd::setsid()?;
        SigSet::empty().thread_set_mask()?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes plain system calls only (prctl, getppid, setsid,
    // sigprocmask): no allocation, no lock.
    unsafe { command.pre_exec(prepare) };
}
