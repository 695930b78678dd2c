//! The hidden program that runs tests of LTP, one at a time, and lets nothing of them survive. One works for
//! the profiler all along; of those that LTP's own runners start, each runs one test.
//!
//! When its socket closes, because the profiler is dead or wants it so, it ends what runs, and itself.

use std::ffi::OsString;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::result::{TIMED_OUT, TestEnd};
use super::wire::{Answer, Order};
use crate::load::family::Family;
use crate::load::{nanoseconds, sys};

/// How much of a test's output is kept: its end.
const OUTPUT_BYTES: usize = 2048;

/// How long what a test started may live on after its end without being called left running: the
/// rest of a pipeline needs a moment.
const STRAGGLER_PATIENCE: Duration = Duration::from_millis(100);

/// The program's `main`: without arguments the socket is standard input; a runner of LTP's gives the
/// path of the socket and the number of the test.
pub(in crate::load) fn main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let number = |text: OsString| text.to_str()?.parse::<usize>().ok();
    let result = match (args.next(), args.next().map(number)) {
        (None, _) => serve(),
        (Some(path), Some(Some(test))) => run_one(&path, test),
        _ => return 2,
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("profiler: the process that runs tests: {error}");
            1
        }
    }
}

/// Runs tests as they come.
fn serve() -> io::Result<i32> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut agent = Agent::new(socket)?;
    while let Some(order) = agent.order()? {
        agent.run(&order)?;
    }
    Ok(0)
}

/// Runs the one test that a runner of LTP's has started this process for, and ends as it did.
fn run_one(path: &OsString, test: usize) -> io::Result<i32> {
    let mut agent = Agent::new(UnixStream::connect(path)?)?;
    agent.answer(&Answer::Hello(test))?;
    let Some(order) = agent.order()? else { return Ok(TIMED_OUT) };
    let end = agent.run(&order)?;
    // Until the profiler has read the counters the runner must not go on.
    let _ = agent.order()?;
    Ok(match end {
        TestEnd::Exit(code) => code,
        TestEnd::Signal(number) => {
            // The runner is to see what the profiler has seen.
            if let Ok(signal) = Signal::try_from(number) {
                let _ = SigSet::empty().thread_set_mask();
                let _ = nix::sys::signal::raise(signal);
            }
            128 + number
        }
        TestEnd::TimedOut | TestEnd::Stopped => TIMED_OUT,
        TestEnd::NotStarted(_) => 127,
    })
}

struct Agent {
    socket: UnixStream,
    /// What was read and is no whole line yet.
    unread: Vec<u8>,
    closed: bool,
    signals: SignalFd,
}

impl Agent {
    fn new(socket: UnixStream) -> io::Result<Self> {
        set_child_subreaper(true)?;
        // Blocked before any start, so that not even a test that ends at once is missed. SIGINT and
        // SIGHUP may come from the terminal: the profiler hears them too and tells what to do.
        let mut heard = SigSet::empty();
        heard.extend([Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        heard.thread_block()?;
        let signals = SignalFd::with_flags(&heard, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { socket, unread: Vec::new(), closed: false, signals })
    }

    fn answer(&mut self, answer: &Answer) -> io::Result<()> {
        let mut line = serde_json::to_vec(answer)?;
        line.push(b'\n');
        match self.socket.write_all(&line) {
            // Nobody listens any more: the next look for an order says so, too.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }

    /// The next order; `None` when there will be none.
    fn order(&mut self) -> io::Result<Option<Order>> {
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                // An empty line stops a test; one that comes late stops nothing.
                if line.len() > 1 {
                    return Ok(Some(serde_json::from_slice(&line)?));
                }
                continue;
            }
            if self.closed {
                return Ok(None);
            }
            let [told, signalled] =
                sys::wait_readable([self.socket.as_fd(), self.signals.as_fd()], None)?;
            if signalled && self.told_to_end()? {
                return Ok(None);
            }
            if told {
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

    fn told_to_end(&mut self) -> io::Result<bool> {
        let mut told = false;
        while let Some(signal) = self.signals.read_signal()? {
            told |= signal.ssi_signo.cast_signed() == Signal::SIGTERM as i32;
        }
        Ok(told)
    }

    /// Runs one test to its end and everything that it started to theirs, and tells of it.
    fn run(&mut self, order: &Order) -> io::Result<TestEnd> {
        let mut output = Output::new(order.pass_output_on);
        let began = Instant::now();
        let child = match start(order, &mut output) {
            Ok(child) => child,
            Err(error) => {
                let program = order.argv.first().map_or("", String::as_str);
                let mut why = format!("{program}: {error}");
                if order.user.is_some() && error.kind() == io::ErrorKind::PermissionDenied {
                    why.push_str("; may its user reach the program, and the folder for its files?");
                }
                let end = TestEnd::NotStarted(why);
                self.answer(&Answer::Ended {
                    end: end.clone(),
                    elapsed_ns: 0,
                    left_running: 0,
                    immortal: Vec::new(),
                    output: String::new(),
                })?;
                return Ok(end);
            }
        };
        let mut family = Family::of(child);
        let end =
            self.wait(&mut family, began + Duration::from_millis(order.limit_ms), &mut output)?;
        let elapsed_ns = nanoseconds(began.elapsed());
        let (left_running, grace) = match end {
            // LTP's runners kill what is left at once, too.
            TestEnd::Exit(_) | TestEnd::Signal(_) => {
                (family.stragglers(STRAGGLER_PATIENCE, &self.signals)?, Duration::ZERO)
            }
            _ => (0, Duration::from_millis(order.grace_ms)),
        };
        let immortal = family.end(grace, &self.signals)?;
        let end_told = end.clone();
        self.answer(&Answer::Ended {
            end: end_told,
            elapsed_ns,
            left_running,
            immortal,
            output: output.take()?,
        })?;
        Ok(end)
    }

    fn wait(
        &mut self,
        family: &mut Family,
        limit: Instant,
        output: &mut Output,
    ) -> io::Result<TestEnd> {
        loop {
            if let Some(status) = family.reap()? {
                return Ok(ending(status));
            }
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(TestEnd::TimedOut);
            }
            let own = (self.socket.as_fd(), self.signals.as_fd());
            let (told, signalled) = match &output.pipe {
                Some(pipe) => {
                    let [told, signalled, written] =
                        sys::wait_readable([own.0, own.1, pipe.as_fd()], Some(left))?;
                    if written {
                        output.read()?;
                    }
                    (told, signalled)
                }
                None => {
                    let [told, signalled] = sys::wait_readable([own.0, own.1], Some(left))?;
                    (told, signalled)
                }
            };
            if signalled && self.told_to_end()? {
                return Ok(TestEnd::Stopped);
            }
            // Whatever comes while a test runs asks for its end, and so does the closing.
            if told {
                self.read()?;
                if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                    self.unread.drain(..=end);
                    return Ok(TestEnd::Stopped);
                }
                if self.closed {
                    return Ok(TestEnd::Stopped);
                }
            }
        }
    }
}

fn start(order: &Order, output: &mut Output) -> io::Result<Pid> {
    let (program, args) = order
        .argv
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an empty command"))?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    for (name, value) in &order.env {
        command.env(name, value);
    }
    if let Some((user, group)) = order.user {
        command.uid(user).gid(group);
    }
    if let Some(folder) = &order.cwd {
        command.current_dir(folder);
    }
    output.connect(&mut command)?;
    sys::own_session_dying_with_parent(&mut command, None);
    let child = command.spawn()?;
    Ok(Pid::from_raw(child.id().cast_signed()))
}

fn ending(status: ExitStatus) -> TestEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => TestEnd::Exit(code),
        (None, Some(number)) => TestEnd::Signal(number),
        (None, None) => TestEnd::NotStarted(format!("it ended with {status}")),
    }
}

/// The end of what a test writes.
struct Output {
    pipe: Option<PipeReader>,
    /// Whether it also goes where this process's own does.
    pass_on: bool,
    tail: Vec<u8>,
}

impl Output {
    fn new(pass_on: bool) -> Self {
        Self { pipe: None, pass_on, tail: Vec::new() }
    }

    fn connect(&mut self, command: &mut Command) -> io::Result<()> {
        let (reader, writer) = io::pipe()?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        command.stdout(writer.try_clone()?).stderr(writer);
        self.pipe = Some(reader);
        Ok(())
    }

    /// Takes what is there now.
    fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let mut bytes = [0; 16384];
        match pipe.read(&mut bytes) {
            // Every writer is gone: looking on would not sleep.
            Ok(0) => self.pipe = None,
            Ok(count) => {
                let written = bytes.get(..count).unwrap_or_default();
                if self.pass_on {
                    let mut out = io::stdout();
                    // A runner that no longer reads is ending: the test's end is told all the same.
                    let _ = out.write_all(written).and_then(|()| out.flush());
                }
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

    /// The last lines of all that was written.
    fn take(mut self) -> io::Result<String> {
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
        // Begins with a whole line where something was left out.
        let whole = match text.split_once('\n') {
            Some((_, rest)) if self.tail.len() >= OUTPUT_BYTES => rest,
            _ => &text,
        };
        Ok(whole.trim_end().to_owned())
    }
}
