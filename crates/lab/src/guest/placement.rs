//! Placements: histories of a guest before a driver is installed, or after an agent has started.
//!
//! One snapshot repeats to the bit and is still one case of many: where the allocator puts an object decides how many
//! comparisons a check of the kernel makes. A placement moves what a driver allocates, the process ids that it sees and the address
//! that it is loaded at, by its number and in the same way for each build.

use std::fs::File;
use std::io;
use std::net::UdpSocket;

use nix::errno::Errno;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use socket2::{SockFilter, SockRef};

/// For each number of a placement: processes that were started, files that are open, sockets that are connected, and filters,
/// whose code the kernel puts where it puts modules. The counts have no factor in common with the objects of a page.
const PROCESSES: u32 = 7;
const FILES: u32 = 13;
const SOCKETS: u32 = 11;
const FILTERS: u32 = 3;

/// Makes the history of the placement `number`; that of 0 is empty. What stays is held by a process of its own, as long as the
/// guest runs: each process that the load starts would copy the descriptors, and take longer the higher the number.
///
/// # Errors
/// If the kernel refuses a part of it.
pub(super) fn make(number: u32) -> io::Result<()> {
    // SAFETY: the first process has one thread, so that the child may do all that it could.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => match waitpid(child, Some(WaitPidFlag::WUNTRACED))? {
            WaitStatus::Stopped(..) => Ok(()),
            WaitStatus::Exited(_, errno) => Err(Errno::from_raw(errno).into()),
            other => Err(io::Error::other(format!("{other:?}"))),
        },
        ForkResult::Child => {
            let held = hold(number);
            let stopped = held.as_ref().is_ok_and(|_| raise(Signal::SIGSTOP).is_ok());
            let errno = held.err().and_then(|error| error.raw_os_error());
            std::process::exit(if stopped { 0 } else { errno.unwrap_or(libc::EIO) })
        }
    }
}

fn hold(number: u32) -> io::Result<(Vec<File>, Vec<UdpSocket>)> {
    for _ in 0..number * PROCESSES {
        profiler_load::setsid_in_child()?;
    }
    let files = (0..number * FILES).map(|file| File::create(format!("/run/placement-{file}")));
    let files = files.collect::<io::Result<_>>()?;
    let sockets = (0..number * SOCKETS).map(|socket| {
        let made = UdpSocket::bind("127.0.0.1:0")?;
        made.connect("127.0.0.1:9")?;
        if socket < number * FILTERS {
            // One that takes each packet (BPF_RET | BPF_K of linux/filter.h): the kernel compiles it to code of its own.
            let take_all = SockFilter::new(0x06, 0, 0, u32::MAX);
            SockRef::from(&made).attach_filter(&[take_all])?;
        }
        Ok(made)
    });
    Ok((files, sockets.collect::<io::Result<_>>()?))
}
