//! QEMU's machine protocol over a socket: QEMU's `docs/interop/qmp-spec.rst`.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use profiler_vm::Interrupts;
use serde_json::{Value, json};

/// How long one read waits, after which a signal is seen.
const TICK: Duration = Duration::from_millis(100);

/// Longest that a command may take that does not run the guest.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// A connection, until a signal asks this program to end.
///
/// Errors are [`ErrorKind::UnexpectedEof`] once QEMU has closed it, and [`ErrorKind::TimedOut`].
pub(super) struct Qmp<'a> {
    socket: BufReader<UnixStream>,
    interrupts: &'a Interrupts,
    /// The beginning of a message.
    partial: Vec<u8>,
    events: VecDeque<String>,
}

impl<'a> Qmp<'a> {
    /// Takes the greeting and begins.
    pub(super) fn begin(socket: UnixStream, interrupts: &'a Interrupts) -> io::Result<Self> {
        socket.set_read_timeout(Some(TICK))?;
        let (socket, events) = (BufReader::new(socket), VecDeque::new());
        let mut qmp = Self { socket, interrupts, partial: Vec::new(), events };
        qmp.message(Instant::now() + COMMAND_LIMIT)?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// The signal that asked this program to end.
    pub(super) fn signal(&self) -> Option<i32> {
        self.interrupts.caught()
    }

    /// Executes a command; gives what it returns.
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        self.execute_with(command, arguments, &[])
    }

    /// Makes an open file known to QEMU by a name.
    pub(super) fn give(&mut self, name: &str, file: BorrowedFd<'_>) -> io::Result<()> {
        let files = [file.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&files)];
        self.execute_with("getfd", &json!({ "fdname": name }), &rights).map(drop)
    }

    fn execute_with(
        &mut self,
        command: &str,
        arguments: &Value,
        rights: &[ControlMessage<'_>],
    ) -> io::Result<Value> {
        let text = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        let (socket, bytes) = (self.socket.get_ref().as_raw_fd(), [IoSlice::new(text.as_bytes())]);
        let sent = sendmsg::<()>(socket, &bytes, rights, MsgFlags::MSG_NOSIGNAL, None);
        if !sent.is_ok_and(|bytes| bytes == text.len()) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let deadline = Instant::now() + COMMAND_LIMIT;
        loop {
            let mut message = self.message(deadline)?;
            if let Some(event) = message["event"].as_str() {
                self.events.push_back(event.to_owned());
            } else if let Some(text) = message["error"]["desc"].as_str() {
                return Err(io::Error::other(format!("QEMU refuses `{command}`: {text}")));
            } else {
                return Ok(message["return"].take());
            }
        }
    }

    /// The name of the next event.
    pub(super) fn event(&mut self, deadline: Instant) -> io::Result<String> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Some(event) = self.message(deadline)?["event"].as_str() {
                return Ok(event.to_owned());
            }
        }
    }

    fn message(&mut self, deadline: Instant) -> io::Result<Value> {
        loop {
            if self.signal().is_some() {
                return Err(ErrorKind::Interrupted.into());
            }
            if Instant::now() >= deadline {
                return Err(ErrorKind::TimedOut.into());
            }
            match self.socket.read_until(b'\n', &mut self.partial) {
                Ok(_) if self.partial.ends_with(b"\n") => {
                    return Ok(serde_json::from_slice(&std::mem::take(&mut self.partial))?);
                }
                Ok(_) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Err(io::Error::other(format!("the connection to QEMU: {error}")));
                }
                Err(_) => {}
            }
        }
    }
}
