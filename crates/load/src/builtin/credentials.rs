//! Operations on credentials and keys, and on a network interface: what drivers of integrity and rights hook.

use std::io::{self, IoSlice, Read as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::sched::CloneFlags;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixCredentials, sendmsg, socket,
};

use super::worker::{Doing as _, NewWorker, new_namespace, refused, simple};
use crate::syscalls;

/// Calls that set the credentials that the thread has, calls on keys and namespaces that fail, and credentials sent to a socket.
pub(super) fn credentials() -> NewWorker {
    if !nix::unistd::geteuid().is_root() {
        return Err(refused("setgroups needs a capability: run it as root"));
    }
    let has_32_bits = syscalls::has_32_bit_calls();
    let (sender, mut receiver) = UnixStream::pair().doing("a pair of Unix sockets")?;
    simple(move || {
        for (name, result, allowed) in syscalls::of_credentials(has_32_bits) {
            let errno = result.as_ref().err().and_then(io::Error::raw_os_error);
            if !allowed.iter().any(|it| errno == Some(*it as i32)) {
                result.doing(name)?;
            }
        }
        send(&sender, &mut receiver).doing("send credentials")
    })
}

fn send(sender: &UnixStream, receiver: &mut UnixStream) -> io::Result<()> {
    let own = UnixCredentials::new();
    let message = [ControlMessage::ScmCredentials(&own)];
    let bytes = [IoSlice::new(b".")];
    sendmsg::<()>(sender.as_raw_fd(), &bytes, &message, MsgFlags::empty(), None)?;
    receiver.read_exact(&mut [0])
}

/// The loopback interface of a network namespace of this thread: it gets another address and a neighbour, is brought up and down.
pub(super) fn interface() -> NewWorker {
    new_namespace(CloneFlags::CLONE_NEWNET, "a network namespace of its own")?;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None);
    let socket = socket.doing("a UDP socket")?;
    let mut last = 1;
    simple(move || {
        last = 3 - last;
        change(socket.as_fd(), last).doing("change the loopback interface")
    })
}

fn change(socket: BorrowedFd<'_>, last: u8) -> io::Result<()> {
    syscalls::set_loopback(socket, true)?;
    syscalls::set_address(socket, Ipv4Addr::new(127, 0, 0, last))?;
    syscalls::set_neighbour(socket, Ipv4Addr::new(127, 0, 0, 3), last == 1)?;
    syscalls::set_loopback(socket, false)
}
