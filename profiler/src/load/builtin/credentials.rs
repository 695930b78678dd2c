//! Operations on credentials and keys, and on a network interface: what drivers of integrity and rights hook.

use std::io::{self, IoSlice, Read as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixCredentials, sendmsg, socket,
};

use super::worker::{OperationError, Worker};
use crate::load::syscalls;
use crate::recording::loads::OwnCalls;

/// Calls that set the credentials that the thread has, calls on keys and namespaces that fail, and credentials sent to a socket.
pub(super) struct Credentials {
    has_32_bits: bool,
    sender: UnixStream,
    receiver: UnixStream,
}

impl Credentials {
    pub(super) fn new() -> Result<Self, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("setgroups needs a capability: run it as root".to_owned());
        }
        let sockets = UnixStream::pair();
        let (sender, receiver) =
            sockets.map_err(|error| format!("a pair of Unix sockets: {error}"))?;
        Ok(Self { has_32_bits: syscalls::has_32_bit_calls(), sender, receiver })
    }

    fn send(&mut self) -> io::Result<()> {
        let own = UnixCredentials::new();
        let message = [ControlMessage::ScmCredentials(&own)];
        let bytes = [IoSlice::new(b".")];
        sendmsg::<()>(self.sender.as_raw_fd(), &bytes, &message, MsgFlags::empty(), None)?;
        self.receiver.read_exact(&mut [0])
    }
}

impl Worker for Credentials {
    fn operate(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        for (name, result, allowed) in syscalls::of_credentials(self.has_32_bits) {
            match result {
                Ok(()) => {}
                Err(error) if allowed.iter().any(|it| error.raw_os_error() == Some(*it as i32)) => {
                }
                Err(error) => return Err(OperationError::of_io(name, &error)),
            }
        }
        self.send().map_err(|error| OperationError::of_io("send credentials", &error))
    }
}

/// The loopback interface of a network namespace of this thread: it gets another address, is brought up and down.
pub(super) struct Interface {
    socket: OwnedFd,
    last: u8,
}

impl Interface {
    pub(super) fn new() -> Result<Self, String> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| {
            format!("a network namespace of its own: {} ({errno:?}): run it as root", errno.desc())
        })?;
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None);
        let socket = socket.map_err(|errno| format!("a UDP socket: {}", errno.desc()))?;
        Ok(Self { socket, last: 1 })
    }
}

impl Worker for Interface {
    fn operate(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        let failed = |error| OperationError::of_io("change the loopback interface", &error);
        self.last = 3 - self.last;
        let socket = self.socket.as_fd();
        syscalls::set_interface(socket, "lo", true).map_err(failed)?;
        let address = Ipv4Addr::new(127, 0, 0, self.last);
        syscalls::set_address(socket, "lo", address).map_err(failed)?;
        syscalls::set_interface(socket, "lo", false).map_err(failed)
    }
}
