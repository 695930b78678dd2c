//! QEMU's machine protocol over a socket: QEMU's `docs/interop/qmp-spec.rst`.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read as _};
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

/// Most bytes of a message. That with the console's last lines is the longest.
const MAX_MESSAGE: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum QmpError {
    /// QEMU has closed the connection.
    Ended,
    /// There was none in time.
    TimedOut,
    /// A signal, by number, asked this program to end.
    Interrupted(i32),
    /// QEMU refused the command, or the connection broke.
    Refused(String),
}

/// A connection, until a signal asks this program to end.
pub(super) struct Qmp<'a> {
    socket: UnixStream,
    interrupts: &'a Interrupts,
    unread: Vec<u8>,
    events: VecDeque<String>,
}

impl<'a> Qmp<'a> {
    /// Takes the greeting and begins.
    pub(super) fn begin(socket: UnixStream, interrupts: &'a Interrupts) -> Result<Self, QmpError> {
        socket.set_read_timeout(Some(TICK)).map_err(broken)?;
        let mut qmp = Self { socket, interrupts, unread: Vec::new(), events: VecDeque::new() };
        qmp.message(Instant::now() + COMMAND_LIMIT)?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Executes a command; gives what it returns.
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        self.execute_with(command, arguments, &[])
    }

    /// Makes an open file known to QEMU by a name.
    pub(super) fn give(&mut self, name: &str, file: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.execute_with("getfd", &json!({ "fdname": name }), &[file.as_raw_fd()]).map(drop)
    }

    fn execute_with(
        &mut self,
        command: &str,
        arguments: &Value,
        files: &[i32],
    ) -> Result<Value, QmpError> {
        let mut text = json!({ "execute": command, "arguments": arguments }).to_string();
        text.push('\n');
        let rights = [ControlMessage::ScmRights(files)];
        let rights = if files.is_empty() { &[][..] } else { &rights[..] };
        let sent = sendmsg::<()>(
            self.socket.as_raw_fd(),
            &[IoSlice::new(text.as_bytes())],
            rights,
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
        if !sent.is_ok_and(|bytes| bytes == text.len()) {
            return Err(QmpError::Ended);
        }
        let deadline = Instant::now() + COMMAND_LIMIT;
        loop {
            let mut message = self.message(deadline)?;
            if let Some(event) = message["event"].as_str() {
                self.events.push_back(event.to_owned());
            } else if let Some(text) = message["error"]["desc"].as_str() {
                return Err(QmpError::Refused(format!("QEMU refuses `{command}`: {text}")));
            } else {
                return Ok(message["return"].take());
            }
        }
    }

    /// The name of the next event.
    pub(super) fn event(&mut self, deadline: Instant) -> Result<String, QmpError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Some(event) = self.message(deadline)?["event"].as_str() {
                return Ok(event.to_owned());
            }
        }
    }

    fn message(&mut self, deadline: Instant) -> Result<Value, QmpError> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|error| broken(error.into()));
            }
            if let Some(signal) = self.interrupts.caught() {
                return Err(QmpError::Interrupted(signal));
            }
            if Instant::now() >= deadline {
                return Err(QmpError::TimedOut);
            }
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err(QmpError::Ended),
                Ok(bytes) if self.unread.len() + bytes <= MAX_MESSAGE => {
                    self.unread.extend_from_slice(&buffer[..bytes]);
                }
                Ok(_) => return Err(QmpError::Refused("QEMU sends a message without end".into())),
                Err(error) if is_tick(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(QmpError::Ended);
                }
                Err(error) => return Err(broken(error)),
            }
        }
    }
}

fn is_tick(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

fn broken(error: io::Error) -> QmpError {
    QmpError::Refused(format!("the connection to QEMU: {error}"))
}
