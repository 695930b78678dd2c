//! Placements: histories of a guest before a driver is installed.
//!
//! One snapshot repeats to the bit and is still one case of many: where the allocator puts an object decides how many
//! comparisons a check of the kernel makes. A placement moves what a driver allocates, the process ids that it sees and the address
//! that it is loaded at, by its number and in the same way for each build.

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

/// What a placement has made, which stays.
#[derive(Default)]
pub(super) struct History {
    _files: Vec<File>,
    _sockets: Vec<UdpSocket>,
}

/// For each number of a placement: processes that were started, files that are open, sockets that are connected, and filters,
/// whose code the kernel puts where it puts modules. The counts have no factor in common with the objects of a page.
const PROCESSES: u32 = 7;
const FILES: u32 = 13;
const SOCKETS: u32 = 11;
const FILTERS: u32 = 3;

/// Makes the history of the placement `number`; that of 0 is empty.
///
/// # Errors
/// If the kernel refuses a part of it.
pub(super) fn make(number: u32) -> io::Result<History> {
    let mut history = History::default();
    for _ in 0..number * PROCESSES {
        crate::load::setsid_in_child()?;
    }
    for file in 0..number * FILES {
        history._files.push(File::create(format!("/run/placement-{file}"))?);
    }
    for socket in 0..number * SOCKETS {
        let made = UdpSocket::bind("127.0.0.1:0")?;
        made.connect("127.0.0.1:9")?;
        if socket < number * FILTERS {
            attach_filter(&made)?;
        }
        history._sockets.push(made);
    }
    Ok(history)
}

/// A filter that takes each packet: the kernel compiles it to code of its own.
fn attach_filter(socket: &UdpSocket) -> io::Result<()> {
    // BPF_RET | BPF_K: linux/filter.h.
    let mut take_all = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: u32::MAX };
    let program = libc::sock_fprog { len: 1, filter: &raw mut take_all };
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
