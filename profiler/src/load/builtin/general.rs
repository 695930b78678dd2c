//! Operations that no hook is about: what a hook on everything costs shows there.

use std::ffi::CString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, socket};

use super::net::{ANSWER, LOST_AFTER, check_length, first_socket};
use super::worker::{OperationError, Shared, Worker};
use crate::load::syscalls;
use crate::recording::loads::OwnCalls;

/// What is sent and received.
const BYTES: [u8; 64] = [b'.'; 64];

fn of_io(doing: &'static str) -> impl Fn(io::Error) -> OperationError {
    move |error| OperationError::of_io(doing, &error)
}

pub(super) struct Getppid;

impl Worker for Getppid {
    fn operate(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        nix::unistd::getppid();
        Ok(())
    }
}

/// Two ends that bytes go through: those of a pipe, or of a TCP connection.
pub(super) struct Through<W, R> {
    writer: W,
    reader: R,
}

impl Through<PipeWriter, PipeReader> {
    pub(super) fn pipe() -> Result<Self, String> {
        let (reader, writer) = io::pipe().map_err(|error| format!("a pipe: {error}"))?;
        Ok(Self { writer, reader })
    }
}

impl Through<TcpStream, TcpStream> {
    pub(super) fn tcp(calls: &mut OwnCalls) -> Result<Self, String> {
        drop(first_socket()?);
        calls.bind += 1;
        calls.connect += 1;
        calls.accept += 1;
        let connection = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let writer = TcpStream::connect(listener.local_addr()?)?;
            writer.set_nodelay(true)?;
            Ok(Self { writer, reader: listener.accept()?.0 })
        };
        connection().map_err(|error: io::Error| format!("a TCP connection to 127.0.0.1: {error}"))
    }
}

impl<W: Write, R: Read> Worker for Through<W, R> {
    fn operate(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        self.writer.write_all(&BYTES).map_err(of_io("write"))?;
        self.reader.read_exact(&mut [0; BYTES.len()]).map_err(of_io("read"))
    }
}

/// A file that is there.
pub(super) struct Existing {
    path: CString,
    opened: bool,
}

impl Existing {
    /// It is opened and closed, or `stat` looks at it.
    pub(super) fn new(
        shared: &Shared,
        index: u32,
        opened: bool,
        calls: &mut OwnCalls,
    ) -> Result<Self, String> {
        let directory = shared.directory.as_ref().ok_or("it has no directory")?.path();
        let path = directory.join(format!("worker-{index}"));
        calls.open_create += 1;
        std::fs::write(&path, BYTES).map_err(|error| format!("{}: {error}", path.display()))?;
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        Ok(Self { path, opened })
    }
}

impl Worker for Existing {
    fn operate(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        if self.opened {
            syscalls::open(&self.path).map(drop).map_err(of_io("open a file"))
        } else {
            let found = nix::sys::stat::stat(self.path.as_c_str()).map(drop);
            found.map_err(|errno| OperationError::new("stat a file", errno))
        }
    }
}

pub(super) struct Mmap;

impl Worker for Mmap {
    fn operate(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        syscalls::Page::new().map(drop).map_err(of_io("mmap"))
    }
}

pub(super) struct Futex;

impl Worker for Futex {
    fn operate(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        syscalls::futex_wake().map_err(of_io("futex"))
    }
}

pub(super) struct Epoll(syscalls::ReadyEpoll);

impl Epoll {
    pub(super) fn new() -> Result<Self, String> {
        syscalls::ReadyEpoll::new().map(Self).map_err(|error| format!("epoll: {error}"))
    }
}

impl Worker for Epoll {
    fn operate(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        match self.0.wait().map_err(of_io("epoll_wait"))? {
            1 => Ok(()),
            events => {
                let text = format!("epoll_wait gave {events} events instead of one");
                Err(OperationError { kind: "no event".to_owned(), text })
            }
        }
    }
}

pub(super) struct Fork;

impl Worker for Fork {
    fn operate(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        syscalls::spawn_noop().map_err(of_io("a process that ends at once"))
    }
}

/// A thread that answers each byte, so that each operation switches to it and back.
pub(super) struct Switch {
    /// `None` once it is dropped, which ends the thread.
    there: Option<PipeWriter>,
    back: PipeReader,
    partner: Option<JoinHandle<()>>,
}

impl Switch {
    pub(super) fn new() -> Result<Self, String> {
        let no_pipe = |error: io::Error| format!("a pipe: {error}");
        let (mut asked, there) = io::pipe().map_err(no_pipe)?;
        let (back, mut answer) = io::pipe().map_err(no_pipe)?;
        let echo = move || {
            let mut byte = [0];
            while asked.read_exact(&mut byte).and_then(|()| answer.write_all(&byte)).is_ok() {}
        };
        let partner = std::thread::Builder::new().name("load-switch".to_owned()).spawn(echo);
        let partner = Some(partner.map_err(|error| format!("a thread: {error}"))?);
        Ok(Self { there: Some(there), back, partner })
    }
}

impl Worker for Switch {
    fn operate(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        let written = self.there.as_mut().map_or(Ok(()), |there| there.write_all(b"."));
        written.and_then(|()| self.back.read_exact(&mut [0])).map_err(of_io("switch to a thread"))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        drop(self.there.take());
        if let Some(partner) = self.partner.take() {
            let _ = partner.join();
        }
    }
}

/// A page that a system call writes to and that is not there: the fault is the call's.
pub(super) struct PageFault(syscalls::Page);

impl PageFault {
    pub(super) fn new() -> Result<Self, String> {
        let page = syscalls::Page::writable();
        page.map(Self).map_err(|error| format!("a page of memory: {error}"))
    }
}

impl Worker for PageFault {
    fn operate(&mut self, _: &mut OwnCalls) -> Result<(), OperationError> {
        self.0.fault().map_err(of_io("a page fault"))
    }
}

/// A UDP socket of its own that connects and sends, by IPv6 if the kernel has it.
pub(super) struct Ipv6 {
    receiver: UdpSocket,
    at: SocketAddr,
}

impl Ipv6 {
    pub(super) fn new(calls: &mut OwnCalls) -> Result<Self, String> {
        drop(first_socket()?);
        calls.bind += 1;
        let receiver = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0));
        let receiver = receiver.or_else(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
        let of_receiver = |receiver: UdpSocket| {
            receiver.set_read_timeout(Some(LOST_AFTER))?;
            Ok(Self { at: receiver.local_addr()?, receiver })
        };
        receiver.and_then(of_receiver).map_err(|error| format!("a UDP socket on ::1: {error}"))
    }
}

impl Worker for Ipv6 {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.bind += 1;
        let sender = UdpSocket::bind((self.at.ip(), 0)).map_err(of_io("bind to ::1"))?;
        calls.connect += 1;
        sender.connect(self.at).map_err(of_io("connect to ::1"))?;
        sender.send(ANSWER).map_err(of_io("send to ::1"))?;
        let received = self.receiver.recv_from(&mut [0; 512]).map_err(of_io("receive on ::1"))?;
        check_length(received.0, ANSWER.len())
    }
}

/// Calls that fail: `open`, `execve` and `execveat` of a file that is not there, `accept` where nobody waits, a
/// `connect` that is refused.
pub(super) struct Errors {
    missing: syscalls::Missing,
    /// Nobody connects to it.
    listener: TcpListener,
    /// Nobody listens there: the socket is bound, so that no other can.
    refused: (SocketAddr, OwnedFd),
}

impl Errors {
    pub(super) fn new(calls: &mut OwnCalls) -> Result<Self, String> {
        drop(first_socket()?);
        calls.bind += 2;
        let sockets = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            let refused =
                socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            bind(refused.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0))?;
            let at: SockaddrIn = getsockname(refused.as_raw_fd())?;
            let at = SocketAddr::from((Ipv4Addr::LOCALHOST, at.port()));
            Ok(Self { missing: syscalls::Missing::new()?, listener, refused: (at, refused) })
        };
        sockets().map_err(|error: io::Error| format!("TCP sockets on 127.0.0.1: {error}"))
    }
}

impl Worker for Errors {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.execve += 1;
        calls.accept += 1;
        calls.connect += 1;
        let refused = TcpStream::connect(self.refused.0).map(drop);
        let accepted = syscalls::accept(self.listener.as_fd());
        let made = [
            (self.missing.open(), Errno::ENOENT),
            (self.missing.execve(), Errno::ENOENT),
            (self.missing.execveat(), Errno::ENOENT),
            (accepted, Errno::EAGAIN),
            (refused, Errno::ECONNREFUSED),
        ];
        made.into_iter().try_for_each(|(result, expected)| has_failed(result, expected))
    }
}

/// The same of a file that is not there, by the system calls of 32-bit programs; by 64-bit ones where the kernel has no others.
pub(super) struct Errors32 {
    missing: syscalls::Missing,
    has_32_bits: bool,
}

impl Errors32 {
    pub(super) fn new() -> Result<Self, String> {
        let no_page = |error| format!("a page of memory: {error}");
        let missing = syscalls::Missing::new().map_err(no_page)?;
        Ok(Self { missing, has_32_bits: syscalls::has_32_bit_calls() })
    }
}

impl Worker for Errors32 {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        let Self { missing, has_32_bits } = self;
        let made = if *has_32_bits {
            missing.by_32_bits()
        } else {
            calls.execve += 1;
            [missing.open(), missing.execve(), missing.execveat()]
        };
        made.into_iter().try_for_each(|result| has_failed(result, Errno::ENOENT))
    }
}

fn has_failed(result: io::Result<()>, expected: Errno) -> Result<(), OperationError> {
    match result {
        Err(error) if error.raw_os_error() == Some(expected as i32) => Ok(()),
        Err(error) => {
            Err(OperationError::of_io(&format!("a call that fails with {expected:?}"), &error))
        }
        Ok(()) => {
            let text = format!("a call that fails with {expected:?} did not");
            Err(OperationError { kind: "no error".to_owned(), text })
        }
    }
}
