//! The hidden program between the profiler and a command of the user. Nothing that the command starts
//! outlives the guard, and the guard does not outlive the profiler:
//!
//! - it is the reaper of all orphans below it (`PR_SET_CHILD_SUBREAPER`), so that even a daemon that left
//!   its session stays its descendant, and "no child left" means that nothing is left;
//! - its standard input comes from the profiler and closes when that dies, be it by SIGKILL.
//!
//! It answers on standard output, a line each: `started PID`, then `exit CODE` or `signal NUMBER` as soon
//! as the command has ended, then `left PID...` if something could not be killed. The end of the output
//! means that all is cleared away.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::family::Family;
use super::sys;

/// What the guard tells the profiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// The command runs.
    Started(i32),
    /// The command could not be executed: the error number.
    NotStarted(i32),
    /// The command ended with this code.
    Exit(i32),
    /// The command was killed by the signal of this number.
    Signal(i32),
    /// These processes did not go away.
    Left(Vec<i32>),
    /// The guard itself could not work.
    Fault(String),
}

impl Message {
    fn line(&self) -> String {
        match self {
            Self::Started(pid) => format!("started {pid}"),
            Self::NotStarted(errno) => format!("not-started {errno}"),
            Self::Exit(code) => format!("exit {code}"),
            Self::Signal(number) => format!("signal {number}"),
            Self::Left(pids) => {
                format!("left {}", pids.iter().map(i32::to_string).collect::<Vec<_>>().join(" "))
            }
            Self::Fault(text) => format!("fault {}", text.replace('\n', " ")),
        }
    }

    /// Reads one line of the guard.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.trim_end().split_once(' ')?;
        Some(match word {
            "started" => Self::Started(rest.parse().ok()?),
            "not-started" => Self::NotStarted(rest.parse().ok()?),
            "exit" => Self::Exit(rest.parse().ok()?),
            "signal" => Self::Signal(rest.parse().ok()?),
            "left" => Self::Left(rest.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?),
            "fault" => Self::Fault(rest.to_owned()),
            _ => return None,
        })
    }
}

fn tell(message: &Message) {
    let mut out = io::stdout();
    // A profiler that no longer listens is dead or about to be: the clean-up goes on all the same.
    let _ = writeln!(out, "{}", message.line()).and_then(|()| out.flush());
}

/// The guard's `main`: arguments are the grace in milliseconds, then the command.
pub(super) fn main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let grace = args.next().and_then(|text| text.to_str()?.parse().ok());
    let (Some(grace_ms), Some(program)) = (grace, args.next()) else { return 2 };
    match run(Duration::from_millis(grace_ms), &program, args) {
        Ok(()) => 0,
        Err(error) => {
            tell(&Message::Fault(error.to_string()));
            1
        }
    }
}

fn run(
    grace: Duration,
    program: &OsString,
    args: impl Iterator<Item = OsString>,
) -> io::Result<()> {
    set_child_subreaper(true)?;
    // Blocked before the start, so that not even a command that ends at once is missed. SIGINT and
    // SIGHUP may come from the terminal: the profiler hears them too and tells what to do.
    let mut heard = SigSet::empty();
    heard.extend([Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    heard.thread_block()?;
    let signals = SignalFd::with_flags(&heard, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;

    // Standard output is the profiler's report and not the command's.
    let output = io::stderr().as_fd().try_clone_to_owned()?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(output).stderr(Stdio::inherit());
    sys::own_session_dying_with_parent(&mut command);
    let child = match command.spawn() {
        Ok(child) => Pid::from_raw(child.id().cast_signed()),
        Err(error) => {
            tell(&match error.raw_os_error() {
                Some(errno) => Message::NotStarted(errno),
                None => Message::Fault(error.to_string()),
            });
            return Ok(());
        }
    };
    tell(&Message::Started(child.as_raw()));

    let mut family = Family::of(child);
    let mut stdin = io::stdin();
    'living: loop {
        if let Some(status) = family.reap()? {
            tell(&ending(status));
            break;
        }
        let [told, signalled] = sys::wait_readable([stdin.as_fd(), signals.as_fd()], None)?;
        // Anything on the input asks for the end, and so does its closing.
        if told
            && !matches!(stdin.read(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::Interrupted)
        {
            break;
        }
        if signalled {
            while let Some(signal) = signals.read_signal()? {
                if signal.ssi_signo.cast_signed() == Signal::SIGTERM as i32 {
                    break 'living;
                }
            }
        }
    }
    let left = family.end(grace, &signals)?;
    if !left.is_empty() {
        tell(&Message::Left(left));
    }
    Ok(())
}

fn ending(status: ExitStatus) -> Message {
    match (status.code(), status.signal()) {
        (Some(code), _) => Message::Exit(code),
        (None, Some(number)) => Message::Signal(number),
        (None, None) => Message::Fault(format!("it ended with {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_line() {
        for message in [
            Message::Started(42),
            Message::NotStarted(2),
            Message::Exit(0),
            Message::Signal(9),
            Message::Left(vec![1, 22]),
            Message::Fault("no /proc".to_owned()),
        ] {
            assert_eq!(Message::parse(&format!("{}\n", message.line())), Some(message));
        }
        for line in ["", "exit", "exit x", "left 1 x", "hello world"] {
            assert_eq!(Message::parse(line), None, "{line:?}");
        }
    }
}
