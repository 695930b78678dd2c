//! All processes below this one, and how to end them.

use std::collections::{HashMap, HashSet};
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
use procfs::process::{Process, Stat, all_processes};
use rustix::process::{PidfdFlags, WaitOptions, pidfd_open, pidfd_send_signal};

use crate::syscalls::{Start, start_in_session};
use profiler_recording::loads::TestEnd;

/// How long to wait after SIGKILL for a process in an uninterruptible sleep.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long processes are killed, of which some end all the time and new ones are started.
const LONGEST_KILL: Duration = Duration::from_secs(60);

/// How often to look for orphans, whose parents end without a signal to this process.
const TICK: Duration = Duration::from_millis(20);

/// A command that was started, and all that it has started. This process is the parent of all orphans below it
/// (`PR_SET_CHILD_SUBREAPER`): a daemon that has left its session becomes its child, and "no child left" means that nothing is.
pub(super) struct Processes {
    /// Readable if a child has ended or a signal has come.
    pub(super) signals: SignalFd,
    command: Option<Pid>,
    /// Other processes that have ended.
    pub(super) others_ended: u64,
    none_left: bool,
}

impl Processes {
    /// Receives the signals of this process by a descriptor from now on.
    pub(super) fn new() -> io::Result<Self> {
        set_child_subreaper(true)?;
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
        wait_readable([self.signals.as_fd()], Some(TICK))?;
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

    /// Asks all processes to end, each once, and waits at most `grace` for that.
    pub(super) fn terminate_all(&mut self, grace: Duration) -> io::Result<()> {
        let deadline = Instant::now() + grace;
        let mut asked = HashSet::new();
        while !self.none_left && Instant::now() < deadline {
            for process in descendants()? {
                if asked.insert((process.pid, process.started)) {
                    // A stopped process handles it only once it is continued.
                    process.signal(Signal::SIGTERM);
                    process.signal(Signal::SIGCONT);
                }
            }
            self.tick()?;
        }
        Ok(())
    }

    /// Kills all processes; those that did not end.
    pub(super) fn kill_all(&mut self) -> io::Result<Vec<i32>> {
        let last = Instant::now() + LONGEST_KILL;
        let mut deadline = Instant::now() + KILL_TIMEOUT;
        // Repeatedly: they may start others meanwhile.
        while !self.none_left && Instant::now() < deadline {
            let ended = self.others_ended;
            descendants()?.iter().for_each(Descendant::kill);
            self.tick()?;
            if self.others_ended > ended {
                deadline = last.min(Instant::now() + KILL_TIMEOUT);
            }
        }
        let left = if self.none_left { Vec::new() } else { descendants()? };
        Ok(left.iter().map(|process| process.pid.as_raw()).collect())
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

/// A process below this one.
#[derive(Debug, Clone, Copy)]
struct Descendant {
    pid: Pid,
    /// In clock ticks since the machine was started.
    started: u64,
    is_child: bool,
}

impl Descendant {
    /// Its parent may have reaped it since it was found, and its id be another process's by now: the descriptor is of one process,
    /// and the time of its start says whether that is the one that was found. `None` if it has ended.
    fn signal(&self, signal: Signal) -> Option<()> {
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw())?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let found = Process::new(self.pid.as_raw()).and_then(|process| process.stat()).ok()?;
        let signal = rustix::process::Signal::from_named_raw(signal as i32)?;
        (found.starttime == self.started).then(|| pidfd_send_signal(process, signal).ok())?
    }

    /// Kills it: a child with its process group, as the kernel then lets none of them start another meanwhile. That group's id is no
    /// other's before the child is reaped, and the group is within a session that this process is not in.
    fn kill(&self) {
        let group = getpgid(Some(self.pid)).ok();
        match group.filter(|group| self.is_child && *group != getpgrp()) {
            Some(group) => drop(killpg(group, Signal::SIGKILL)),
            None => drop(self.signal(Signal::SIGKILL)),
        }
    }
}

/// All processes below this one that have not ended, the latest first, in whatever process group and session: a process that starts
/// another and stays alive keeps that from becoming a child of this one.
fn descendants() -> io::Result<Vec<Descendant>> {
    let all = all_processes().map_err(io::Error::other)?;
    let mut by_parent: HashMap<i32, Vec<Stat>> = HashMap::new();
    // A process that ended meanwhile is no error.
    for stat in all.flatten().filter_map(|process| process.stat().ok()) {
        by_parent.entry(stat.ppid).or_default().push(stat);
    }
    let mut found = Vec::new();
    let this = std::process::id().cast_signed();
    let mut parents = vec![(this, 0)];
    while let Some((parent, started)) = parents.pop() {
        // One that is older had another parent with this id.
        let children = by_parent.remove(&parent).into_iter().flatten();
        for stat in children.filter(|child| child.starttime >= started) {
            parents.push((stat.pid, stat.starttime));
            // The first thread of a process may have ended before others.
            if !matches!(stat.state, 'Z' | 'X') || stat.num_threads > 1 {
                found.push(Descendant {
                    pid: Pid::from_raw(stat.pid),
                    started: stat.starttime,
                    is_child: parent == this,
                });
            }
        }
    }
    found.sort_by_key(|process| process.started);
    found.reverse();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_cannot_hide_behind_a_name_like_a_line_of_proc() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("x) Z 1 (y");
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = Command::new(program).arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let is_found = || descendants().unwrap().into_iter().find(|process| process.pid == pid);
        // In the group of this process, which does not get the signal.
        is_found().unwrap().kill();
        // A zombie is no living child.
        let killed = Instant::now();
        while is_found().is_some() {
            assert!(killed.elapsed() < Duration::from_secs(60));
        }
        child.wait().unwrap();
    }

    /// A process that was found, and whose id is another's by now.
    #[test]
    fn a_process_that_started_at_another_time_gets_no_signal() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let found = descendants().unwrap().into_iter().find(|process| process.pid == pid).unwrap();
        let other = Descendant { started: found.started + 1, ..found };
        assert_eq!(other.signal(Signal::SIGKILL), None);
        assert_eq!(child.try_wait().unwrap(), None);
        assert_eq!(found.signal(Signal::SIGKILL), Some(()));
        child.wait().unwrap();
    }
}
