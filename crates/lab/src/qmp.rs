//! QEMU's machine protocol over a socket: QEMU's `docs/interop/qmp-spec.rst`.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::{Value, json};

use profiler_system::caught_signal;

/// How long one look for a message takes, after which a signal is seen.
const TICK: Duration = Duration::from_millis(100);

/// Longest that a command may take that does not run the guest.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// A connection, until a signal asks this program to end.
///
/// Errors are [`ErrorKind::UnexpectedEof`] once QEMU has closed it, and [`ErrorKind::TimedOut`].
pub(super) struct Qmp {
    socket: BufReader<UnixStream>,
    /// What has come of the next message, which is a line.
    line: Vec<u8>,
    /// Names of events that came before what a command returned.
    events: VecDeque<String>,
}

impl Qmp {
    /// Takes the greeting and begins.
    pub(super) fn begin(socket: UnixStream) -> io::Result<Self> {
        socket.set_read_timeout(Some(TICK))?;
        let socket = BufReader::new(socket);
        let mut qmp = Self { socket, line: Vec::new(), events: VecDeque::new() };
        qmp.message(Instant::now() + COMMAND_LIMIT)?;
        qmp.execute("qmp_capabilities", &json!({}), &[])?;
        Ok(qmp)
    }

    /// Executes a command, for which QEMU gets these open files; gives what it returns.
    pub(super) fn execute(
        &mut self,
        command: &str,
        arguments: &Value,
        files: &[RawFd],
    ) -> io::Result<Value> {
        let text = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        let (bytes, rights) = ([IoSlice::new(text.as_bytes())], [ControlMessage::ScmRights(files)]);
        let socket = self.socket.get_ref().as_raw_fd();
        let sent = sendmsg::<()>(socket, &bytes, &rights, MsgFlags::MSG_NOSIGNAL, None);
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
        if let Some(event) = self.events.pop_front() {
            return Ok(event);
        }
        // Nothing else comes while no command is executed.
        let message = self.message(deadline)?;
        Ok(message["event"].as_str().unwrap_or_default().to_owned())
    }

    fn message(&mut self, deadline: Instant) -> io::Result<Value> {
        while self.line.last() != Some(&b'\n') {
            if caught_signal().is_some() {
                return Err(ErrorKind::Interrupted.into());
            }
            if Instant::now() >= deadline {
                return Err(ErrorKind::TimedOut.into());
            }
            match self.socket.read_until(b'\n', &mut self.line) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) | Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
            }
        }
        Ok(serde_json::from_slice(&std::mem::take(&mut self.line))?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::thread;

    use super::*;

    #[test]
    fn answers_and_events_are_told_apart() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let qemu = thread::spawn(move || {
            let (mut to, mut from, mut asked) = (&theirs, BufReader::new(&theirs), String::new());
            to.write_all(b"{\"QMP\": {}}\r\n").unwrap();
            let event = "{\"event\": \"RESUME\"}\r\n{\"return\": 7}";
            for answer in ["{\"return\": {}}", event, "{\"error\": {\"desc\": \"no\"}}"] {
                from.read_line(&mut asked).unwrap();
                to.write_all(answer.as_bytes()).unwrap();
                to.write_all(b"\r\n").unwrap();
            }
            asked
        });
        let mut qmp = Qmp::begin(ours).unwrap();
        assert_eq!(qmp.event(Instant::now()).unwrap_err().kind(), ErrorKind::TimedOut);
        let file = File::open("/dev/null").unwrap();
        assert_eq!(qmp.execute("one", &json!({}), &[file.as_raw_fd()]).unwrap(), json!(7));
        let refused = qmp.execute("two", &json!({}), &[]).unwrap_err();
        assert_eq!(refused.to_string(), "QEMU refuses `two`: no");
        let soon = Instant::now() + COMMAND_LIMIT;
        assert_eq!(qmp.event(soon).unwrap(), "RESUME");
        assert_eq!(qmp.event(soon).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(qemu.join().unwrap().matches("execute").count(), 3);
    }
}
