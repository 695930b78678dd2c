//! Operations on sockets over the loopback interface: no packet leaves the machine, and ports are not
//! exhausted at any rate.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, bind, connect, getsockname, recvfrom,
    sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::worker::{OperationError, Worker};
use crate::load::syscalls;
use crate::recording::loads::OwnCalls;

/// Port of the discard service. A UDP `connect` sends nothing, so nobody has to listen.
const DISCARD: u16 = 9;

/// A DNS answer (one question, `a.test`, no records), which a handler of `udp_recvmsg` that parses names
/// processes in full.
pub(super) const ANSWER: &[u8] =
    b"\x12\x34\x81\x80\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01";

/// Port of multicast DNS: above 1023, so that any user may bind to it.
const MULTICAST_DNS: u16 = 5353;

/// A datagram that has not arrived after this long is lost: loopback delivers within the send.
pub(super) const LOST_AFTER: Duration = Duration::from_secs(1);

fn udp() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
}

fn loopback(port: u16) -> SockaddrIn {
    SockaddrIn::new(127, 0, 0, 1, port)
}

/// A UDP socket, after checking that 127.0.0.1 can be reached.
pub(super) fn first_socket() -> Result<OwnedFd, String> {
    let socket = udp().map_err(|errno| format!("a UDP socket: {}", errno.desc()))?;
    match syscalls::interface_is_up(socket.as_fd(), "lo") {
        Ok(true) => Ok(socket),
        Ok(false) => Err("the loopback interface is down; run `ip link set lo up`".to_owned()),
        Err(error) => {
            Err(format!("the state of the loopback interface `lo` cannot be read: {error}"))
        }
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
        // Not connected and not bound, which would add calls. Its first send gives it a port.
        let sender = udp().map_err(no_socket)?;
        Self::from(sender, calls)
    }

    /// With answers from port 5353, which drivers that parse DNS look at. All of 127/8 is this machine:
    /// each worker takes an address of its own, and other programs on that port keep theirs.
    pub(super) fn dns(index: u32, calls: &mut OwnCalls) -> Result<Self, String> {
        let [_, a, b, c] = index.wrapping_add(1).to_be_bytes();
        let from = SockaddrIn::new(127, a | 0x40, b, c, MULTICAST_DNS);
        let sender = udp().map_err(no_socket)?;
        setsockopt(&sender, sockopt::ReuseAddr, &true).map_err(no_socket)?;
        calls.bind += 1;
        bind(sender.as_raw_fd(), &from)
            .map_err(|errno| format!("bind to {from}: {}", errno.desc()))?;
        Self::from(sender, calls)
    }

    fn from(sender: OwnedFd, calls: &mut OwnCalls) -> Result<Self, String> {
        let receiver = first_socket()?;
        calls.bind += 1;
        bind(receiver.as_raw_fd(), &loopback(0)).map_err(no_socket)?;
        let limit = TimeVal::new(LOST_AFTER.as_secs().cast_signed(), 0);
        setsockopt(&receiver, sockopt::ReceiveTimeout, &limit).map_err(no_socket)?;
        let address = getsockname(receiver.as_raw_fd()).map_err(no_socket)?;
        Ok(Self { receiver, sender, address })
    }
}

fn no_socket(errno: Errno) -> String {
    format!("a UDP socket on 127.0.0.1: {}", errno.desc())
}

impl Worker for UdpReceive {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        sendto(self.sender.as_raw_fd(), ANSWER, &self.address, MsgFlags::empty())
            .map_err(|errno| OperationError::new("send to 127.0.0.1", errno))?;
        let mut datagram = [0; 512];
        calls.udp_recvmsg += 1;
        // With the sender's address: handlers look at it on sockets that are not connected.
        match recvfrom::<SockaddrIn>(self.receiver.as_raw_fd(), &mut datagram) {
            Ok((length, _)) => check_length(length, ANSWER.len()),
            Err(errno) => Err(OperationError::new("receive on 127.0.0.1", errno)),
        }
    }
}

/// Fails unless as many bytes were received as were sent.
pub(super) fn check_length(received: usize, sent: usize) -> Result<(), OperationError> {
    if received == sent {
        return Ok(());
    }
    let text = format!("received {received} bytes instead of {sent}");
    Err(OperationError { kind: "wrong length".to_owned(), text })
}

/// A listening TCP socket and its only client.
pub(super) struct Accept {
    listener: TcpListener,
    address: SocketAddr,
    /// The connection that waits to be accepted.
    client: Option<TcpStream>,
}

impl Accept {
    pub(super) fn new(calls: &mut OwnCalls) -> Result<Self, String> {
        drop(first_socket()?);
        calls.bind += 1;
        let no_listener = |error| format!("a TCP socket on 127.0.0.1: {error}");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no_listener)?;
        let address = listener.local_addr().map_err(no_listener)?;
        Ok(Self { listener, address, client: None })
    }
}

impl Worker for Accept {
    fn prepare(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        if self.client.is_some() {
            return Ok(());
        }
        calls.connect += 1;
        // The listener's queue completes the connection before it is accepted.
        let client = TcpStream::connect(self.address)
            .map_err(|error| OperationError::of_io("connect to 127.0.0.1 by TCP", &error))?;
        // Closed by a reset, which frees the pair of ports at once.
        let reset = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&client, sockopt::Linger, &reset)
            .map_err(|errno| OperationError::new("SO_LINGER", errno))?;
        self.client = Some(client);
        Ok(())
    }

    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.accept += 1;
        let accepted = self.listener.accept();
        // The client is closed first, by its reset.
        drop(self.client.take());
        match accepted {
            Ok(_) => Ok(()),
            Err(error) => Err(OperationError::of_io("accept on 127.0.0.1", &error)),
        }
    }
}
