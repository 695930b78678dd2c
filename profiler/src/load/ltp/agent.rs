//! The process that runs LTP tests, one at a time, and ends all their descendants. Each worker has one.
//!
//! When its socket closes, on request or because the profiler is dead, it ends the running test and itself.

use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::SigSet;

use super::protocol::{AgentMessage, TestRequest};
use crate::load::sandbox::{Exit, ProcessTree, Subreaper};
use crate::load::syscalls::wait_readable;
use crate::recording::loads::TestEnd;
use crate::stats::nanoseconds;

/// How much of the end of a test's output is kept.
const OUTPUT_BYTES: usize = 2048;

/// How long descendants of a test may outlive it without counting as left running: the other
/// processes of a pipeline need a moment.
const STRAGGLER_GRACE: Duration = Duration::from_millis(100);

/// The `main` of [`Role::TestAgent`](crate::load::sandbox::Role::TestAgent). Its socket is standard input.
pub(in crate::load) fn main() -> i32 {
    match serve() {
        Ok(()) => 0,
        Err(error) => {
            crate::terminal::say(&format!("profiler: the agent that runs tests: {error}"));
            1
        }
    }
}

/// Runs tests as they are requested.
fn serve() -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut agent = Agent::new(socket)?;
    while let Some(request) = agent.next_request()? {
        agent.run(&request)?;
    }
    Ok(())
}

struct Agent {
    socket: UnixStream,
    /// Bytes that are no whole line yet.
    unread: Vec<u8>,
    closed: bool,
    subreaper: Subreaper,
}

impl Agent {
    fn new(socket: UnixStream) -> io::Result<Self> {
        Ok(Self { socket, unread: Vec::new(), closed: false, subreaper: Subreaper::new()? })
    }

    fn send(&mut self, message: &AgentMessage) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        match self.socket.write_all(&line) {
            // The profiler has closed the socket, which the next read finds too.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }

    /// The next line without its end, if a whole one has been read.
    fn line(&mut self) -> Option<Vec<u8>> {
        let end = self.unread.iter().position(|&byte| byte == b'\n')?;
        let mut line: Vec<u8> = self.unread.drain(..=end).collect();
        line.pop();
        Some(line)
    }

    /// The next request; `None` when there will be none.
    fn next_request(&mut self) -> io::Result<Option<TestRequest>> {
        loop {
            match self.line() {
                // An empty line stops a test. This one came after its end.
                Some(line) if line.is_empty() => continue,
                Some(line) => return Ok(Some(serde_json::from_slice(&line)?)),
                None if self.closed => return Ok(None),
                None => {}
            }
            let [readable, signalled] =
                wait_readable([self.socket.as_fd(), self.subreaper.as_fd()], None)?;
            if signalled && self.subreaper.sigterm_received()? {
                return Ok(None);
            }
            if readable {
                self.read()?;
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        match self.socket.read(&mut bytes) {
            Ok(0) => self.closed = true,
            Ok(count) => self.unread.extend_from_slice(bytes.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => self.closed = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Runs one test, ends all its descendants, and reports its end.
    fn run(&mut self, request: &TestRequest) -> io::Result<TestEnd> {
        let mut output = Output::new();
        let started = Instant::now();
        let (end, elapsed, left_running, unkillable) = match start(request, &mut output) {
            Ok(mut tree) => {
                let deadline = started + Duration::from_millis(request.timeout_ms);
                let end = self.wait(&mut tree, deadline, &mut output)?;
                let elapsed = started.elapsed();
                let (left_running, grace) = match end {
                    // As LTP's runners, which kill what is left at once.
                    TestEnd::Exit(_) | TestEnd::Signal(_) => {
                        (tree.still_running(STRAGGLER_GRACE, &self.subreaper)?, Duration::ZERO)
                    }
                    _ => (0, Duration::from_millis(request.grace_ms)),
                };
                (end, elapsed, left_running, tree.end(grace, &self.subreaper)?)
            }
            Err(error) => {
                let end = TestEnd::NotStarted(why_not_started(request, &error));
                (end, Duration::ZERO, 0, Vec::new())
            }
        };
        self.send(&AgentMessage::Ended {
            end: end.clone(),
            elapsed_ns: nanoseconds(elapsed),
            left_running,
            unkillable,
            output: output.end()?,
        })?;
        Ok(end)
    }

    /// Waits until the test ends, times out or is to be stopped.
    fn wait(
        &mut self,
        tree: &mut ProcessTree,
        deadline: Instant,
        output: &mut Output,
    ) -> io::Result<TestEnd> {
        loop {
            match tree.reap()? {
                Some(Exit::Code(code)) => return Ok(TestEnd::Exit(code)),
                Some(Exit::Signal(number)) => return Ok(TestEnd::Signal(number)),
                None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(TestEnd::TimedOut);
            }
            let (socket, signals) = (self.socket.as_fd(), self.subreaper.as_fd());
            let (readable, signalled) = match &output.pipe {
                Some(pipe) => {
                    let [readable, signalled, written] =
                        wait_readable([socket, signals, pipe.as_fd()], Some(left))?;
                    if written {
                        output.read()?;
                    }
                    (readable, signalled)
                }
                None => wait_readable([socket, signals], Some(left))?.into(),
            };
            if signalled && self.subreaper.sigterm_received()? {
                return Ok(TestEnd::Stopped);
            }
            if readable {
                self.read()?;
                // Any line while a test runs asks for its end, and so does the end of the connection.
                if self.line().is_some() || self.closed {
                    return Ok(TestEnd::Stopped);
                }
            }
        }
    }
}

fn start(request: &TestRequest, output: &mut Output) -> io::Result<ProcessTree> {
    let (program, args) = request
        .argv
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an empty command"))?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).envs(request.env.iter().cloned());
    if let Some((user, group)) = request.user {
        command.uid(user).gid(group);
    }
    command.current_dir(&request.cwd);
    output.connect(&mut command)?;
    ProcessTree::start(&mut command, None, SigSet::empty())
}

fn why_not_started(request: &TestRequest, error: &io::Error) -> String {
    let program = request.argv.first().map_or("", String::as_str);
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied if request.user.is_some() => {
            "; can its user access the program, and the folder for its files?"
        }
        _ => "",
    };
    format!("{program}: {error}{hint}")
}

/// The end of a test's output.
struct Output {
    pipe: Option<PipeReader>,
    tail: Vec<u8>,
}

impl Output {
    fn new() -> Self {
        Self { pipe: None, tail: Vec::new() }
    }

    fn connect(&mut self, command: &mut Command) -> io::Result<()> {
        let (reader, writer) = io::pipe()?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        command.stdout(writer.try_clone()?).stderr(writer);
        self.pipe = Some(reader);
        Ok(())
    }

    /// Reads what is available.
    fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let mut bytes = [0; 16384];
        match pipe.read(&mut bytes) {
            // All writers have closed it: `poll` would return at once.
            Ok(0) => self.pipe = None,
            Ok(count) => {
                let written = bytes.get(..count).unwrap_or_default();
                self.tail.extend_from_slice(written);
                let surplus = self.tail.len().saturating_sub(OUTPUT_BYTES);
                self.tail.drain(..surplus);
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The last lines of the output.
    fn end(mut self) -> io::Result<String> {
        // A pipe holds 64 KiB by default, and at most 1 MiB; a process that cannot be killed may go on writing.
        for _ in 0..64 {
            if self.pipe.is_none() {
                break;
            }
            let before = self.tail.clone();
            self.read()?;
            if self.tail == before {
                break;
            }
        }
        let text = String::from_utf8_lossy(&self.tail);
        // Starts with a whole line if something is left out.
        let whole = match text.split_once('\n') {
            Some((_, rest)) if self.tail.len() >= OUTPUT_BYTES => rest,
            _ => &text,
        };
        Ok(whole.trim_end().to_owned())
    }
}
