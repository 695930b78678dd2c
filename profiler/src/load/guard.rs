//! The hidden program between the profiler and a command of the user. Nothing that the command starts
//! outlives the guard, and the guard does not outlive the profiler:
//!
//! - it is the reaper of all orphans below it (`PR_SET_CHILD_SUBREAPER`), so that even a daemon that left
//!   its session stays its descendant, and "no child left" means that nothing is left;
//! - its standard input comes from the profiler and closes when that dies, be it by SIGKILL.
//!
//! It answers on standard output, a line each: `started PID`, then `exit CODE` or `signal NUMBER` as soon
//! as the command has ended, then `left PID...` if something could not be killed. The end of the output
//! means that all is cleared away, folder and control group of the command included. A command that
//! reports for itself adds `outcome JSON`.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::confine::{Scratch, remove_group};
use super::family::Family;
use super::{LoadOutcome, sys};

/// What the guard is told, as JSON in its first argument.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Orders {
    /// Time between SIGTERM and SIGKILL.
    pub(super) grace_ms: u64,
    /// User and group that the command runs as.
    pub(super) user: Option<(u32, u32)>,
    /// The command's folder for temporary files, which is removed at the end.
    pub(super) scratch: Option<PathBuf>,
    /// Its control group, which is removed at the end.
    pub(super) group: Option<PathBuf>,
    /// Whether it reports for itself: SIGTERM then goes to it alone, as its children are its own affair.
    pub(super) reports: bool,
}

/// What the guard tells the profiler.
#[derive(Debug, Clone, PartialEq)]
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
    /// The command's own report.
    Outcome(Box<LoadOutcome>),
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
            // Written by the command itself.
            Self::Outcome(_) => String::new(),
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
            "outcome" => Self::Outcome(serde_json::from_str(rest).ok()?),
            _ => return None,
        })
    }
}

fn tell(message: &Message) {
    let mut out = io::stdout();
    // A profiler that no longer listens is dead or about to be: the clean-up goes on all the same.
    let _ = writeln!(out, "{}", message.line()).and_then(|()| out.flush());
}

/// The guard's `main`: arguments are its [`Orders`], then the command.
pub(super) fn main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let orders = args.next().and_then(|text| serde_json::from_str::<Orders>(text.to_str()?).ok());
    let (Some(orders), Some(program)) = (orders, args.next()) else { return 2 };
    let user = orders.user.map(|(user, _)| user);
    // Opened before the command can put anything else in its place.
    let scratch = orders.scratch.clone().map(|path| Scratch::at(path, user));
    let result = run(&orders, &program, args);
    // What remains the profiler removes, if it still lives.
    drop(scratch);
    if let Some(group) = &orders.group {
        let _ = remove_group(group);
    }
    match result {
        Ok(()) => 0,
        Err(error) => {
            tell(&Message::Fault(error.to_string()));
            1
        }
    }
}

fn run(
    orders: &Orders,
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

    let grace = Duration::from_millis(orders.grace_ms);
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stderr(Stdio::inherit());
    // Standard output is the profiler's report, and the command's only where it takes part in it.
    command.stdout(if orders.reports {
        Stdio::inherit()
    } else {
        io::stderr().as_fd().try_clone_to_owned()?.into()
    });
    if let Some((user, group)) = orders.user {
        command.uid(user).gid(group);
    }
    if let Some(folder) = &orders.scratch {
        command.env("TMPDIR", folder);
    }
    let group = orders
        .group
        .as_ref()
        .map(|group| std::fs::File::options().write(true).open(group.join("cgroup.procs")));
    sys::own_session_dying_with_parent(&mut command, group.transpose()?);
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

    let mut family = Family::of(child).reporting(orders.reports);
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
