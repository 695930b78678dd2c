//! Operations on sockets over the loopback interface: no packet leaves the machine, and ports are not
//! exhausted at any rate.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, bind, connect, getsockname, recvfrom,
    sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::worker::{NewWorker, OperationError, Worker, failed, simple, unavailable};
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

const UDP: &str = "a UDP socket on 127.0.0.1";
const TCP: &str = "a TCP socket on 127.0.0.1";

fn udp() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
}

fn loopback(port: u16) -> SockaddrIn {
    SockaddrIn::new(127, 0, 0, 1, port)
}

/// A UDP socket, after checking that 127.0.0.1 can be reached.
pub(super) fn first_socket() -> Result<OwnedFd, String> {
    let socket = udp().map_err(unavailable("a UDP socket"))?;
    let is_up = syscalls::interface_is_up(socket.as_fd(), "lo");
    if is_up.map_err(unavailable("the state of the loopback interface `lo` cannot be read"))? {
        return Ok(socket);
    }
    Err("the loopback interface is down; run `ip link set lo up`".to_owned())
}

pub(super) fn connect_again() -> NewWorker {
    let socket = first_socket()?;
    simple(move |calls| {
        calls.connect += 1;
        connect(socket.as_raw_fd(), &loopback(DISCARD)).map_err(failed("connect to 127.0.0.1"))
    })
}

pub(super) fn bind_anew() -> NewWorker {
    drop(first_socket()?);
    simple(|calls| {
        let socket = udp().map_err(failed("a UDP socket"))?;
        calls.bind += 1;
        bind(socket.as_raw_fd(), &loopback(0)).map_err(failed("bind to 127.0.0.1"))
    })
}

/// A datagram sent and received.
pub(super) fn receive(calls: &mut OwnCalls) -> NewWorker {
    // Not connected and not bound, which would add calls. Its first send gives it a port.
    receive_from(udp().map_err(unavailable(UDP))?, calls)
}

/// The same with answers from port 5353, which drivers that parse DNS look at. All of 127/8 is this machine:
/// each worker takes an address of its own, and other programs on that port keep theirs.
pub(super) fn receive_dns(index: u32, calls: &mut OwnCalls) -> NewWorker {
    let [_, a, b, c] = index.wrapping_add(1).to_be_bytes();
    let from = SockaddrIn::new(127, a | 0x40, b, c, MULTICAST_DNS);
    let sender = udp().map_err(unavailable(UDP))?;
    setsockopt(&sender, sockopt::ReuseAddr, &true).map_err(unavailable(UDP))?;
    calls.bind += 1;
    bind(sender.as_raw_fd(), &from).map_err(unavailable(format!("bind to {from}")))?;
    receive_from(sender, calls)
}

fn receive_from(sender: OwnedFd, calls: &mut OwnCalls) -> NewWorker {
    let receiver = first_socket()?;
    calls.bind += 1;
    bind(receiver.as_raw_fd(), &loopback(0)).map_err(unavailable(UDP))?;
    let limit = TimeVal::new(LOST_AFTER.as_secs().cast_signed(), 0);
    setsockopt(&receiver, sockopt::ReceiveTimeout, &limit).map_err(unavailable(UDP))?;
    let address: SockaddrIn = getsockname(receiver.as_raw_fd()).map_err(unavailable(UDP))?;
    simple(move |calls| {
        sendto(sender.as_raw_fd(), ANSWER, &address, MsgFlags::empty())
            .map_err(failed("send to 127.0.0.1"))?;
        let mut datagram = [0; 512];
        calls.udp_recvmsg += 1;
        // With the sender's address: handlers look at it on sockets that are not connected.
        let received = recvfrom::<SockaddrIn>(receiver.as_raw_fd(), &mut datagram);
        let (length, _) = received.map_err(failed("receive on 127.0.0.1"))?;
        check_length(length, ANSWER.len())
    })
}

/// Fails unless as many bytes were received as were sent.
pub(super) fn check_length(received: usize, sent: usize) -> Result<(), OperationError> {
    if received == sent {
        return Ok(());
    }
    let text = format!("received {received} bytes instead of {sent}");
    Err(OperationError::new("wrong length", text))
}

/// A listening TCP socket and its only client.
struct Accept {
    listener: TcpListener,
    address: SocketAddr,
    /// The connection that waits to be accepted.
    client: Option<TcpStream>,
}

pub(super) fn accept(calls: &mut OwnCalls) -> NewWorker {
    drop(first_socket()?);
    calls.bind += 1;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(unavailable(TCP))?;
    let address = listener.local_addr().map_err(unavailable(TCP))?;
    Ok(Box::new(Accept { listener, address, client: None }))
}

impl Worker for Accept {
    fn prepare(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        if self.client.is_some() {
            return Ok(());
        }
        calls.connect += 1;
        // The listener's queue completes the connection before it is accepted.
        let client = TcpStream::connect(self.address);
        let client = client.map_err(failed("connect to 127.0.0.1 by TCP"))?;
        // Closed by a reset, which frees the pair of ports at once.
        let reset = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&client, sockopt::Linger, &reset).map_err(failed("SO_LINGER"))?;
        self.client = Some(client);
        Ok(())
    }

    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.accept += 1;
        let accepted = self.listener.accept();
        // The client is closed first, by its reset.
        drop(self.client.take());
        accepted.map(drop).map_err(failed("accept on 127.0.0.1"))
    }
}
