//! Operations that no hook is about: what a hook on everything costs shows there.

use std::ffi::CString;
use std::io::{self, PipeWriter, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
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
use super::worker::{Doing as _, NewWorker, OperationErrors, c_string, simple};
use crate::syscalls;

/// What is sent and received.
const BYTES: [u8; 64] = [b'.'; 64];

pub(super) fn pipe() -> NewWorker {
    let (reader, writer) = io::pipe().doing("a pipe")?;
    through(writer, reader)
}

pub(super) fn tcp() -> NewWorker {
    let (writer, reader) = tcp_connection().doing("a TCP connection to 127.0.0.1")?;
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
        writer.write_all(&BYTES).doing("write")?;
        reader.read_exact(&mut [0; BYTES.len()]).doing("read")
    })
}

pub(super) fn stat(folder: &Path, index: u32) -> NewWorker {
    let path = existing(folder, index)?;
    simple(move || nix::sys::stat::stat(path.as_c_str()).doing("stat a file"))
}

pub(super) fn open_existing(folder: &Path, index: u32) -> NewWorker {
    let path = existing(folder, index)?;
    simple(move || syscalls::open(&path).doing("open a file"))
}

/// An existing file.
fn existing(folder: &Path, index: u32) -> Result<CString, OperationErrors> {
    let path = folder.join(format!("worker-{index}"));
    std::fs::write(&path, BYTES).doing(path.display())?;
    c_string(path.as_os_str().as_bytes())
}

/// Wakes those that wait for a word that nobody knows.
pub(super) fn futex() -> Result<usize, OperationErrors> {
    static WORD: AtomicU32 = AtomicU32::new(0);
    futex::wake(&WORD, futex::Flags::PRIVATE, 1).doing("futex")
}

/// An epoll instance with one event, which stays.
pub(super) fn epoll() -> NewWorker {
    let event = EventFd::from_value_and_flags(1, EfdFlags::EFD_CLOEXEC).doing("epoll")?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).doing("epoll")?;
    epoll.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, 0)).doing("epoll")?;
    simple(move || {
        let _open = &event;
        let events = epoll.wait(&mut [EpollEvent::empty()], PollTimeout::ZERO);
        match events.doing("epoll_wait")? {
            1 => Ok(()),
            events => {
                let text = format!("epoll_wait gave {events} events instead of one");
                Err(OperationErrors::one("no event", text))
            }
        }
    })
}

/// A thread that ends with its pipe.
struct Partner(Option<(PipeWriter, JoinHandle<()>)>);

impl Drop for Partner {
    fn drop(&mut self) {
        if let Some((there, thread)) = self.0.take() {
            drop(there);
            let _ = thread.join();
        }
    }
}

/// A thread that answers each byte, so that each operation switches to it and back.
pub(super) fn switch() -> NewWorker {
    let (mut asked, there) = io::pipe().doing("a pipe")?;
    let (mut back, mut answer) = io::pipe().doing("a pipe")?;
    let partner = std::thread::Builder::new().name("load-switch".to_owned()).spawn(move || {
        let mut byte = [0];
        while asked.read_exact(&mut byte).and_then(|()| answer.write_all(&byte)).is_ok() {}
    });
    let mut partner = Partner(Some((there, partner.doing("a thread")?)));
    simple(move || {
        let written = partner.0.as_mut().map_or(Ok(()), |(there, _)| there.write_all(b"."));
        let answered = written.and_then(|()| back.read_exact(&mut [0]));
        answered.doing("switch to a thread")
    })
}

/// A page that is absent when a system call writes to it: the call takes the fault.
pub(super) fn page_fault() -> NewWorker {
    let mut page = syscalls::Page::new(ProtFlags::PROT_WRITE).doing("a page of memory")?;
    simple(move || page.fault().doing("a page fault"))
}

/// A UDP socket of its own that connects and sends, by IPv6 if the kernel has it.
pub(super) fn ipv6() -> NewWorker {
    let receiver = net::receiver(Ipv6Addr::LOCALHOST.into());
    let receiver = receiver.or_else(|_| net::receiver(Ipv4Addr::LOCALHOST.into()));
    let (receiver, at) = receiver.doing("a UDP socket on ::1")?;
    simple(move || {
        let sender = UdpSocket::bind((at.ip(), 0)).doing("bind to ::1")?;
        sender.connect(at).doing("connect to ::1")?;
        sender.send(ANSWER).doing("send to ::1")?;
        receive_answer(&receiver)
    })
}

/// Calls that fail: `open`, `execve` and `execveat` of a missing file, `accept` without a client, a refused
/// `connect`.
pub(super) fn errors() -> NewWorker {
    let sockets = "TCP sockets on 127.0.0.1";
    let missing = syscalls::Missing::new().doing("a page of memory")?;
    // Nobody connects to it.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).doing(sockets)?;
    listener.set_nonblocking(true).doing(sockets)?;
    // Nobody listens there: the socket is bound, so that no other can.
    let refusing = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let refusing = refusing.doing(sockets)?;
    bind(refusing.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).doing(sockets)?;
    let at: SockaddrIn = getsockname(refusing.as_raw_fd()).doing(sockets)?;
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
    let missing = syscalls::Missing::new().doing("a page of memory")?;
    let has_32_bits = syscalls::has_32_bit_calls();
    simple(move || {
        let made = if has_32_bits { missing.by_32_bits() } else { missing.calls() };
        made.into_iter().try_for_each(|result| has_failed(result, Errno::ENOENT))
    })
}

fn has_failed(result: io::Result<()>, expected: Errno) -> Result<(), OperationErrors> {
    match result {
        Err(ref error) if error.raw_os_error() == Some(expected as i32) => Ok(()),
        Err(_) => result.doing(format_args!("a call that fails with {expected:?}")),
        Ok(()) => {
            let text = format!("a call that fails with {expected:?} did not");
            Err(OperationErrors::one("no error", text))
        }
    }
}
