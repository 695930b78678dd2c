//! All processes below this one, and how to end them.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpgid, getpgrp};
use procfs::process::Process;
use rustix::process::WaitOptions;

use crate::load::syscalls::{Start, start_in_session};
use crate::recording::loads::TestEnd;

/// How long to wait after SIGKILL for a process in an uninterruptible sleep.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long processes are killed, of which some end all the time and new ones are started.
const LONGEST_KILL: Duration = Duration::from_secs(60);

/// How often to look for orphans, whose parents end without a signal to this process.
const TICK: Duration = Duration::from_millis(20);

/// A command that was started, and all that it has started. This process is the parent of all orphans below it
/// (`PR_SET_CHILD_SUBREAPER`): a daemon that has left its session becomes its child, and without a child no descendant is left.
pub(super) struct Processes {
    signals: SignalFd,
    command: Option<Pid>,
    /// Other processes that have ended.
    pub(super) others_ended: u64,
    none_left: bool,
}

impl AsFd for Processes {
    /// Readable if a child has ended or a signal has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

impl Processes {
    /// Receives the signals of this process by a descriptor from now on.
    ///
    /// # Errors
    /// If the kernel refuses, or does not list children (`CONFIG_PROC_CHILDREN`): nothing could be ended then.
    pub(super) fn new() -> io::Result<Self> {
        set_child_subreaper(true)?;
        let children = Process::myself().and_then(|this| this.task_main_thread()?.children());
        children.map_err(|error| io::Error::other(format!("a list of its children: {error}")))?;
        // Blocked before any process is started, so that the end of none is missed. SIGINT and SIGHUP
        // may come from the terminal; the profiler gets them too and decides what happens.
        let mut blocked = SigSet::empty();
        blocked.extend([Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        blocked.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&blocked, flags)?;
        Ok(Self { signals, command: None, others_ended: 0, none_left: true })
    }

    /// Takes all signals that have come. True if SIGTERM is among them.
    pub(super) fn sigterm_received(&self) -> io::Result<bool> {
        let mut received = false;
        while let Some(signal) = self.signals.read_signal()? {
            received |= signal.ssi_signo.cast_signed() == Signal::SIGTERM as i32;
        }
        Ok(received)
    }

    /// Starts `command` as the leader of a session.
    pub(super) fn start(&mut self, command: &mut Command, start: Start) -> io::Result<()> {
        start_in_session(command, start);
        self.command = Some(Pid::from_raw(command.spawn()?.id().cast_signed()));
        self.none_left = false;
        Ok(())
    }

    /// Reaps all processes that have ended; how the command did, if it is among them.
    pub(super) fn reap(&mut self) -> io::Result<Option<TestEnd>> {
        let mut end = None;
        loop {
            // Not nix's, which reaps a child killed by a real-time signal and returns an error.
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status)))
                    if Some(pid.as_raw_pid()) == self.command.map(Pid::as_raw) =>
                {
                    self.command = None;
                    end = Some(match status.exit_status() {
                        Some(code) => TestEnd::Exit(code),
                        None => TestEnd::Signal(status.terminating_signal().unwrap_or_default()),
                    });
                }
                Ok(Some(_)) => self.others_ended += 1,
                Ok(None) => return Ok(end),
                Err(rustix::io::Errno::CHILD) => {
                    self.none_left = true;
                    return Ok(end);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits for a moment, then reaps. True if no process is left.
    fn tick(&mut self) -> io::Result<bool> {
        wait_readable([self.as_fd()], Some(TICK))?;
        self.sigterm_received()?;
        self.reap()?;
        Ok(self.none_left)
    }

    /// Waits at most `timeout` for all processes to end by themselves.
    pub(super) fn wait_for_all(&mut self, timeout: Duration) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        while !self.none_left && Instant::now() < deadline && !self.tick()? {}
        Ok(())
    }

    /// Asks the command alone to end, which ends its own children, and waits at most `grace` for it.
    pub(super) fn terminate_command(&mut self, grace: Duration) -> io::Result<()> {
        if let Some(command) = self.command {
            // It may have ended: it keeps its id until it is reaped.
            let _ = kill(command, Signal::SIGTERM);
        }
        let deadline = Instant::now() + grace;
        while self.command.is_some() && Instant::now() < deadline && !self.tick()? {}
        Ok(())
    }

    /// Asks all process groups to end, each once, and waits at most `grace` for that.
    pub(super) fn terminate_all(&mut self, grace: Duration) -> io::Result<()> {
        let deadline = Instant::now() + grace;
        let mut asked = HashSet::new();
        while !self.none_left && Instant::now() < deadline {
            for group in groups_of_children()? {
                if asked.insert(group) {
                    // A stopped process handles it only once it is continued.
                    for signal in [Signal::SIGTERM, Signal::SIGCONT] {
                        // It may have ended.
                        let _ = killpg(group, signal);
                    }
                }
            }
            self.tick()?;
        }
        Ok(())
    }

    /// Kills all processes: children with their groups, whose other children become this process's own. Returns the groups that did
    /// not end.
    pub(super) fn kill_all(&mut self) -> io::Result<Vec<i32>> {
        let last = Instant::now() + LONGEST_KILL;
        let mut deadline = Instant::now() + KILL_TIMEOUT;
        while !self.none_left && Instant::now() < deadline {
            let ended = self.others_ended;
            for group in groups_of_children()? {
                // It may have ended.
                let _ = killpg(group, Signal::SIGKILL);
            }
            self.tick()?;
            if self.others_ended > ended {
                deadline = last.min(Instant::now() + KILL_TIMEOUT);
            }
        }
        let left = if self.none_left { HashSet::new() } else { groups_of_children()? };
        Ok(left.into_iter().map(Pid::as_raw).collect())
    }
}

/// Waits until one of `descriptors` is readable or closed by the other side, or for `limit`; says of each
/// whether it is. A signal may end the wait early.
pub(super) fn wait_readable<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    limit: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
    // Rounded up: less than a millisecond must not become a busy loop.
    let limit = limit.map(|limit| limit.as_nanos().div_ceil(1_000_000));
    let limit = limit.map(|ms| PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX));
    match poll(&mut polled, limit) {
        Ok(_) => Ok(polled.map(|polled| polled.any().unwrap_or(true))),
        Err(Errno::EINTR) => Ok([false; N]),
        Err(errno) => Err(errno.into()),
    }
}

/// The process groups of this process's children. A child that has not been reaped keeps its process id and its group, so neither
/// can be another's; and the group is of a session that this process is not in.
fn groups_of_children() -> io::Result<HashSet<Pid>> {
    let mut groups = HashSet::new();
    for thread in Process::myself().and_then(|this| this.tasks()).map_err(io::Error::other)? {
        // Threads of the clean-up come and go.
        for child in thread.and_then(|thread| thread.children()).unwrap_or_default() {
            groups.extend(getpgid(Some(Pid::from_raw(child.cast_signed()))));
        }
    }
    groups.remove(&getpgrp());
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn a_child_is_found_until_it_is_reaped() {
        let mut child = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        assert!(groups_of_children().unwrap().contains(&pid));
        killpg(pid, Signal::SIGKILL).unwrap();
        child.wait().unwrap();
        assert!(!groups_of_children().unwrap().contains(&pid));
    }
}
