//! Operations on sockets over the loopback interface: no packet leaves the machine, and ports are not
//! exhausted at any rate.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};

use super::worker::{Doing as _, NewWorker, OperationErrors, Step, is_whole, simple};

/// Port of the discard service. A UDP `connect` sends nothing, so nobody has to listen.
const DISCARD: u16 = 9;

/// A DNS answer (one question, `a.test`, no records), which a handler of `udp_recvmsg` that parses names
/// processes in full.
pub(super) const ANSWER: &[u8] =
    b"\x12\x34\x81\x80\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01";

/// Port of multicast DNS: above 1023, so that any user may bind to it.
const MULTICAST_DNS: u16 = 5353;

/// A datagram that has not arrived after this long is lost: loopback delivers within the send.
const LOST_AFTER: Duration = Duration::from_secs(1);

const UDP: &str = "a UDP socket on 127.0.0.1";
const TCP: &str = "a TCP socket on 127.0.0.1";

/// A socket that is not bound.
fn udp() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
}

pub(super) fn connect_again() -> NewWorker {
    let socket = udp().doing("a UDP socket")?;
    simple(move || {
        let discard = SockaddrIn::new(127, 0, 0, 1, DISCARD);
        connect(socket.as_raw_fd(), &discard).doing("connect to 127.0.0.1")
    })
}

/// A datagram sent and received.
pub(super) fn receive() -> NewWorker {
    // Not connected and not bound, which would add calls. Its first send gives it a port.
    receive_from(udp().doing(UDP)?)
}

/// The same with answers from port 5353, which drivers that parse DNS look at. All of 127/8 is this machine:
/// each worker takes an address of its own, and other programs on that port keep theirs.
pub(super) fn receive_dns(index: u32) -> NewWorker {
    let [_, a, b, c] = index.wrapping_add(1).to_be_bytes();
    let from = SockaddrIn::new(127, a | 0x40, b, c, MULTICAST_DNS);
    let sender = udp().doing(UDP)?;
    setsockopt(&sender, sockopt::ReuseAddr, &true).doing(UDP)?;
    bind(sender.as_raw_fd(), &from).doing(format_args!("bind to {from}"))?;
    receive_from(sender)
}

fn receive_from(sender: OwnedFd) -> NewWorker {
    let sender = UdpSocket::from(sender);
    let (receiver, address) = receiver(Ipv4Addr::LOCALHOST.into()).doing(UDP)?;
    simple(move || {
        sender.send_to(ANSWER, address).doing("send to 127.0.0.1")?;
        receive_answer(&receiver)
    })
}

/// A socket that receives on `address`, and where.
pub(super) fn receiver(address: IpAddr) -> io::Result<(UdpSocket, SocketAddr)> {
    let receiver = UdpSocket::bind((address, 0))?;
    receiver.set_read_timeout(Some(LOST_AFTER))?;
    let at = receiver.local_addr()?;
    Ok((receiver, at))
}

/// Receives [`ANSWER`] with the sender's address: handlers look at it on sockets that are not connected.
pub(super) fn receive_answer(receiver: &UdpSocket) -> Result<(), OperationErrors> {
    let received = receiver.recv_from(&mut [0; 512]);
    let (length, _) = received.doing("receive on the loopback interface")?;
    is_whole("received", length, ANSWER.len())
}

/// A listening TCP socket and its only client.
pub(super) fn accept() -> NewWorker {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).doing(TCP)?;
    let address = listener.local_addr().doing(TCP)?;
    // The connection that waits to be accepted.
    let mut client = None;
    Ok(Box::new(move |step| match step {
        Step::Prepare if client.is_some() => Ok(()),
        Step::Prepare => {
            // The listener's queue completes the connection before it is accepted.
            let connected = TcpStream::connect(address).doing("connect to 127.0.0.1 by TCP")?;
            // Closed by a reset, which frees the pair of ports at once.
            let reset = libc::linger { l_onoff: 1, l_linger: 0 };
            setsockopt(&connected, sockopt::Linger, &reset).doing("SO_LINGER")?;
            client = Some(connected);
            Ok(())
        }
        Step::Operate => {
            let accepted = listener.accept();
            // The client is closed first, by its reset.
            drop(client.take());
            accepted.map(drop).doing("accept on 127.0.0.1")
        }
    }))
}
