//! Operations on UDP sockets over the loopback interface: no packet leaves the machine, and no port
//! is used up, whatever the rate.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, bind, connect, getsockname, recvfrom,
    sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::{OperationError, OwnCalls, Worker};
use crate::load::sys;

/// Port of the discard service. A UDP `connect` sends nothing, so nobody has to listen.
const DISCARD: u16 = 9;

/// The shape of a DNS answer (one question, `a.test`, no records): what a handler of `udp_recvmsg`
/// that parses names goes through in full.
const ANSWER: &[u8] =
    b"\x12\x34\x81\x80\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01";

/// A datagram that is not there after this long was lost: loopback delivers within the send.
const LOST_AFTER_S: i64 = 1;

fn udp() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
}

fn loopback(port: u16) -> SockaddrIn {
    SockaddrIn::new(127, 0, 0, 1, port)
}

/// A socket to begin with, and the certainty that 127.0.0.1 can be reached.
fn first_socket() -> Result<OwnedFd, String> {
    let socket = udp().map_err(|errno| format!("a UDP socket: {}", errno.desc()))?;
    match sys::interface_is_up(socket.as_fd(), "lo") {
        Ok(true) => Ok(socket),
        Ok(false) => Err("the loopback interface is down; run `ip link set lo up`".to_owned()),
        Err(error) => Err(format!("the loopback interface `lo` cannot be asked: {error}")),
    }
}

pub(super) struct Connect {
    socket: OwnedFd,
}

impl Connect {
    pub(super) fn new() -> Result<Self, String> {
        Ok(Self { socket: first_socket()? })
    }
}

impl Worker for Connect {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.connect += 1;
        connect(self.socket.as_raw_fd(), &loopback(DISCARD))
            .map_err(|errno| OperationError::new("connect to 127.0.0.1", errno))
    }
}

pub(super) struct Bind;

impl Bind {
    pub(super) fn new() -> Result<Self, String> {
        first_socket().map(|_| Self)
    }
}

impl Worker for Bind {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        let socket = udp().map_err(|errno| OperationError::new("a UDP socket", errno))?;
        calls.bind += 1;
        bind(socket.as_raw_fd(), &loopback(0))
            .map_err(|errno| OperationError::new("bind to 127.0.0.1", errno))
    }
}

pub(super) struct UdpReceive {
    receiver: OwnedFd,
    sender: OwnedFd,
    address: SockaddrIn,
}

impl UdpReceive {
    pub(super) fn new(calls: &mut OwnCalls) -> Result<Self, String> {
        let receiver = first_socket()?;
        let set_up = |errno: Errno| format!("a UDP socket on 127.0.0.1: {}", errno.desc());
        calls.bind += 1;
        bind(receiver.as_raw_fd(), &loopback(0)).map_err(set_up)?;
        let limit = TimeVal::new(LOST_AFTER_S, 0);
        setsockopt(&receiver, sockopt::ReceiveTimeout, &limit).map_err(set_up)?;
        let address = getsockname(receiver.as_raw_fd()).map_err(set_up)?;
        // Not connected and not bound: that would add calls. Its first send gives it a port.
        let sender = udp().map_err(set_up)?;
        Ok(Self { receiver, sender, address })
    }
}

impl Worker for UdpReceive {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        sendto(self.sender.as_raw_fd(), ANSWER, &self.address, MsgFlags::empty())
            .map_err(|errno| OperationError::new("send to 127.0.0.1", errno))?;
        let mut datagram = [0; 512];
        calls.udp_recvmsg += 1;
        // With the sender's address asked for: handlers look at it on sockets that are not connected.
        match recvfrom::<SockaddrIn>(self.receiver.as_raw_fd(), &mut datagram) {
            Ok((length, _)) if length == ANSWER.len() => Ok(()),
            Ok((length, _)) => {
                let text = format!("received {length} bytes instead of {}", ANSWER.len());
                Err(OperationError { kind: "wrong length".to_owned(), text })
            }
            Err(errno) => Err(OperationError::new("receive on 127.0.0.1", errno)),
        }
    }
}
