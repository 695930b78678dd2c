//! Operations that no hook is about: what a hook on everything costs shows there.

use std::ffi::CString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::AtomicU32;
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::poll::PollTimeout;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::mman::ProtFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, socket};
use rustix::thread::futex;

use super::net::{self, ANSWER, receive_answer};
use super::worker::{
    NewWorker, OperationErrors, Shared, Worker, c_string, failed, simple, unavailable,
};
use crate::syscalls;

/// What is sent and received.
const BYTES: [u8; 64] = [b'.'; 64];

pub(super) fn getppid() -> Result<(), OperationErrors> {
    nix::unistd::getppid();
    Ok(())
}

pub(super) fn pipe() -> NewWorker {
    let (reader, writer) = io::pipe().map_err(unavailable("a pipe"))?;
    through(writer, reader)
}

pub(super) fn tcp() -> NewWorker {
    let (writer, reader) =
        tcp_connection().map_err(unavailable("a TCP connection to 127.0.0.1"))?;
    through(writer, reader)
}

fn tcp_connection() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let writer = TcpStream::connect(listener.local_addr()?)?;
    writer.set_nodelay(true)?;
    Ok((writer, listener.accept()?.0))
}

/// Bytes through a pipe, or a TCP connection.
fn through(mut writer: impl Write + 'static, mut reader: impl Read + 'static) -> NewWorker {
    simple(move || {
        writer.write_all(&BYTES).map_err(failed("write"))?;
        reader.read_exact(&mut [0; BYTES.len()]).map_err(failed("read"))
    })
}

pub(super) fn stat(shared: &Shared, index: u32) -> NewWorker {
    let path = existing(shared, index)?;
    simple(move || nix::sys::stat::stat(path.as_c_str()).map(drop).map_err(failed("stat a file")))
}

pub(super) fn open_existing(shared: &Shared, index: u32) -> NewWorker {
    let path = existing(shared, index)?;
    simple(move || syscalls::open(&path).map(drop).map_err(failed("open a file")))
}

/// An existing file.
fn existing(shared: &Shared, index: u32) -> Result<CString, String> {
    let path = shared.directory.join(format!("worker-{index}"));
    std::fs::write(&path, BYTES).map_err(unavailable(path.to_string_lossy()))?;
    c_string(path.as_os_str().as_bytes())
}

pub(super) fn mmap() -> Result<(), OperationErrors> {
    syscalls::Page::new(ProtFlags::empty()).map(drop).map_err(failed("mmap"))
}

/// Wakes those that wait for a word that nobody knows.
pub(super) fn futex() -> Result<(), OperationErrors> {
    static WORD: AtomicU32 = AtomicU32::new(0);
    futex::wake(&WORD, futex::Flags::PRIVATE, 1).map(drop).map_err(failed("futex"))
}

/// An epoll instance with one event, which stays.
pub(super) fn epoll() -> NewWorker {
    let event =
        EventFd::from_value_and_flags(1, EfdFlags::EFD_CLOEXEC).map_err(unavailable("epoll"))?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(unavailable("epoll"))?;
    epoll.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(unavailable("epoll"))?;
    simple(move || {
        let _open = &event;
        let events = epoll.wait(&mut [EpollEvent::empty()], PollTimeout::ZERO);
        match events.map_err(failed("epoll_wait"))? {
            1 => Ok(()),
            events => {
                let text = format!("epoll_wait gave {events} events instead of one");
                Err(OperationErrors::one("no event", text))
            }
        }
    })
}

pub(super) fn fork() -> Result<(), OperationErrors> {
    syscalls::spawn_noop().map_err(failed("a process that ends at once"))
}

struct Switch {
    /// `None` once it is dropped, which ends the thread.
    there: Option<PipeWriter>,
    back: PipeReader,
    partner: Option<JoinHandle<()>>,
}

/// A thread that answers each byte, so that each operation switches to it and back.
pub(super) fn switch() -> NewWorker {
    let (mut asked, there) = io::pipe().map_err(unavailable("a pipe"))?;
    let (back, mut answer) = io::pipe().map_err(unavailable("a pipe"))?;
    let partner = std::thread::Builder::new().name("load-switch".to_owned()).spawn(move || {
        let mut byte = [0];
        while asked.read_exact(&mut byte).and_then(|()| answer.write_all(&byte)).is_ok() {}
    });
    let partner = Some(partner.map_err(unavailable("a thread"))?);
    Ok(Box::new(Switch { there: Some(there), back, partner }))
}

impl Worker for Switch {
    fn operate(&mut self) -> Result<(), OperationErrors> {
        let written = self.there.as_mut().map_or(Ok(()), |there| there.write_all(b"."));
        let answered = written.and_then(|()| self.back.read_exact(&mut [0]));
        answered.map_err(failed("switch to a thread"))
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

/// A page that is absent when a system call writes to it: the call takes the fault.
pub(super) fn page_fault() -> NewWorker {
    let mut page =
        syscalls::Page::new(ProtFlags::PROT_WRITE).map_err(unavailable("a page of memory"))?;
    simple(move || page.fault().map_err(failed("a page fault")))
}

/// A UDP socket of its own that connects and sends, by IPv6 if the kernel has it.
pub(super) fn ipv6() -> NewWorker {
    let receiver = net::receiver(Ipv6Addr::LOCALHOST.into());
    let receiver = receiver.or_else(|_| net::receiver(Ipv4Addr::LOCALHOST.into()));
    let (receiver, at) = receiver.map_err(unavailable("a UDP socket on ::1"))?;
    simple(move || {
        let sender = UdpSocket::bind((at.ip(), 0)).map_err(failed("bind to ::1"))?;
        sender.connect(at).map_err(failed("connect to ::1"))?;
        sender.send(ANSWER).map_err(failed("send to ::1"))?;
        receive_answer(&receiver)
    })
}

/// Calls that fail: `open`, `execve` and `execveat` of a missing file, `accept` without a client, a refused
/// `connect`.
pub(super) fn errors() -> NewWorker {
    let sockets = "TCP sockets on 127.0.0.1";
    let missing = syscalls::Missing::new().map_err(unavailable("a page of memory"))?;
    // Nobody connects to it.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(unavailable(sockets))?;
    listener.set_nonblocking(true).map_err(unavailable(sockets))?;
    // Nobody listens there: the socket is bound, so that no other can.
    let refusing = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let refusing = refusing.map_err(unavailable(sockets))?;
    bind(refusing.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).map_err(unavailable(sockets))?;
    let at: SockaddrIn = getsockname(refusing.as_raw_fd()).map_err(unavailable(sockets))?;
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, at.port()));
    simple(move || {
        let _bound = &refusing;
        let refused = TcpStream::connect(at).map(drop);
        let accepted = syscalls::accept(listener.as_fd());
        let [open, execve, execveat] = missing.calls();
        let made = [
            (open, Errno::ENOENT),
            (execve, Errno::ENOENT),
            (execveat, Errno::ENOENT),
            (accepted, Errno::EAGAIN),
            (refused, Errno::ECONNREFUSED),
        ];
        made.into_iter().try_for_each(|(result, expected)| has_failed(result, expected))
    })
}

/// The first three by the system calls of 32-bit programs, or by 64-bit ones if the kernel has no others.
pub(super) fn errors_32() -> NewWorker {
    let missing = syscalls::Missing::new().map_err(unavailable("a page of memory"))?;
    let has_32_bits = syscalls::has_32_bit_calls();
    simple(move || {
        let made = if has_32_bits { missing.by_32_bits() } else { missing.calls() };
        made.into_iter().try_for_each(|result| has_failed(result, Errno::ENOENT))
    })
}

fn has_failed(result: io::Result<()>, expected: Errno) -> Result<(), OperationErrors> {
    match result {
        Err(error) if error.raw_os_error() == Some(expected as i32) => Ok(()),
        Err(error) => Err(failed(format!("a call that fails with {expected:?}"))(error)),
        Ok(()) => {
            let text = format!("a call that fails with {expected:?} did not");
            Err(OperationErrors::one("no error", text))
        }
    }
}
