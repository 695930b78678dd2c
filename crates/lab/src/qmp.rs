//! QEMU's machine protocol over a socket: QEMU's `docs/interop/qmp-spec.rst`.

use std::io::{self, BufReader, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use profiler_system::caught_signal;
use serde_json::{Deserializer, Value, json};

/// How long one look for a message takes, after which a signal is seen.
const TICK: Duration = Duration::from_millis(100);

/// Longest that a command may take that does not run the guest.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// A connection, until a signal asks this program to end.
///
/// Errors are [`ErrorKind::UnexpectedEof`] once QEMU has closed it, and [`ErrorKind::TimedOut`].
pub(super) struct Qmp {
    socket: UnixStream,
    /// The greeting, and what commands return.
    answers: Receiver<Value>,
    /// Names of events.
    events: Receiver<String>,
}

impl Qmp {
    /// Takes the greeting and begins.
    pub(super) fn begin(socket: UnixStream) -> io::Result<Self> {
        let ((answer, answers), (event, events)) = (channel(), channel());
        let messages = Deserializer::from_reader(BufReader::new(socket.try_clone()?)).into_iter();
        // It ends with the connection.
        thread::Builder::new().spawn(move || {
            for message in messages.map_while(Result::<Value, _>::ok) {
                // Nobody may wait for it any more.
                let _ = match message["event"].as_str() {
                    Some(name) => event.send(name.to_owned()).is_ok(),
                    None => answer.send(message).is_ok(),
                };
            }
        })?;
        let mut qmp = Self { socket, answers, events };
        next(&qmp.answers, Instant::now() + COMMAND_LIMIT)?;
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
        let socket = self.socket.as_raw_fd();
        let sent = sendmsg::<()>(socket, &bytes, &rights, MsgFlags::MSG_NOSIGNAL, None);
        if !sent.is_ok_and(|bytes| bytes == text.len()) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut answer = next(&self.answers, Instant::now() + COMMAND_LIMIT)?;
        match answer["error"]["desc"].as_str() {
            Some(text) => Err(io::Error::other(format!("QEMU refuses `{command}`: {text}"))),
            None => Ok(answer["return"].take()),
        }
    }

    /// The name of the next event.
    pub(super) fn event(&mut self, deadline: Instant) -> io::Result<String> {
        next(&self.events, deadline)
    }
}

/// The next message.
fn next<T>(messages: &Receiver<T>, deadline: Instant) -> io::Result<T> {
    loop {
        if caught_signal().is_some() {
            return Err(ErrorKind::Interrupted.into());
        }
        if Instant::now() >= deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        match messages.recv_timeout(TICK) {
            Ok(message) => return Ok(message),
            Err(RecvTimeoutError::Disconnected) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead as _, Write as _};

    use super::*;

    #[test]
    fn answers_and_events_are_told_apart() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let qemu = thread::spawn(move || {
            let (mut to, mut from, mut asked) = (&theirs, BufReader::new(&theirs), String::new());
            to.write_all(b"{\"QMP\": {}}\r\n").unwrap();
            // A message ends without more behind it.
            let event = r#"{"event": "RESUME"} {"return": 7}"#;
            for answer in [r#"{"return": {}}"#, event, r#"{"error": {"desc": "no"}}"#] {
                from.read_line(&mut asked).unwrap();
                to.write_all(answer.as_bytes()).unwrap();
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
