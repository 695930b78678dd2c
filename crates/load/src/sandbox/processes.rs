//! All processes below this one, and how to end them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{self, SigSet};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use procfs::process::{Process, Stat, all_processes};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpgid, getpgrp, kill_process, kill_process_group,
    pidfd_open, pidfd_send_signal,
};

use profiler_recording::loads::TestEnd;

use super::Sandbox;
use crate::syscalls::start_in_session;

/// How long to wait after SIGKILL for a process in an uninterruptible sleep.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long processes are killed, of which some end all the time and new ones are started.
const LONGEST_KILL: Duration = Duration::from_secs(60);

/// How often to look for orphans, whose parents end without a signal to this process.
const TICK: Duration = Duration::from_millis(20);

/// A command that was started, and all that it has started. This process is the parent of all orphans below it
/// (`PR_SET_CHILD_SUBREAPER`): a daemon that has left its session becomes its child, and "no child left" means that nothing is.
pub(super) struct Processes {
    /// Readable if a child has ended or SIGTERM has come.
    pub(super) signals: SignalFd,
    command: Option<Pid>,
    /// Other processes that have ended.
    pub(super) others_ended: u64,
    none_left: bool,
}

/// Which processes are asked to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Nobody,
    /// The command alone, which ends its own children.
    Command,
    All,
}

impl Processes {
    /// Blocks all signals, before any process is started, so that the end of none is missed. The terminal and systemd send theirs
    /// to all processes; the profiler gets them too and decides what happens.
    pub(super) fn new() -> io::Result<Self> {
        set_child_subreaper(true)?;
        SigSet::all().thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let read = [signal::Signal::SIGCHLD, signal::Signal::SIGTERM];
        let signals = SignalFd::with_flags(&SigSet::from_iter(read), flags)?;
        Ok(Self { signals, command: None, others_ended: 0, none_left: true })
    }

    /// Starts `command` in `sandbox`, as the leader of a session.
    pub(super) fn start(&mut self, command: &mut Command, sandbox: &Sandbox) -> io::Result<()> {
        start_in_session(command, sandbox.clone());
        self.command = Some(Pid::from_child(&command.spawn()?));
        self.none_left = false;
        Ok(())
    }

    /// Takes the news that children have ended, which are then to be reaped. True if SIGTERM is among them.
    pub(super) fn sigterm_received(&self) -> io::Result<bool> {
        let mut received = false;
        while let Some(signal) = self.signals.read_signal()? {
            received |= signal.ssi_signo.cast_signed() == libc::SIGTERM;
        }
        Ok(received)
    }

    /// Reaps all processes that have ended; how the command did, if it is among them.
    pub(super) fn reap(&mut self) -> io::Result<Option<TestEnd>> {
        let mut end = None;
        loop {
            // Not nix's, which reaps a child killed by a real-time signal and returns an error.
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.command => {
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

    /// Waits for a moment, then reaps.
    fn tick(&mut self) -> io::Result<()> {
        wait_readable([self.signals.as_fd()], Some(TICK))?;
        self.sigterm_received()?;
        self.reap().map(drop)
    }

    /// Asks some processes to end, each once, and waits at most `limit`: for the command if that alone is `asked`, or for all.
    pub(super) fn wait_for_all(&mut self, asked: Asked, limit: Duration) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        if let Some(command) = self.command.filter(|_| asked == Asked::Command) {
            // It may have ended: it keeps its id until it is reaped.
            let _ = kill_process(command, Signal::TERM);
        }
        let mut told = HashSet::new();
        while !self.none_left && Instant::now() < deadline {
            if asked == Asked::Command && self.command.is_none() {
                break;
            }
            // Not otherwise: to look for them opens files, which a driver may hook.
            let all = if asked == Asked::All { descendants()? } else { Vec::new() };
            for process in all {
                if told.insert((process.pid, process.starttime)) {
                    // A stopped process handles it only once it is continued.
                    signal(&process, Signal::TERM);
                    signal(&process, Signal::CONT);
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
            descendants()?.iter().for_each(kill);
            let ended = self.others_ended;
            self.tick()?;
            if self.others_ended > ended {
                deadline = last.min(Instant::now() + KILL_TIMEOUT);
            }
        }
        let left = if self.none_left { Vec::new() } else { descendants()? };
        Ok(left.iter().map(|process| process.pid).collect())
    }
}

/// Waits until one of `descriptors` is readable or closed by the other side, or for `limit`; says of each
/// whether it is. Signals, which are blocked, do not end the wait.
pub(super) fn wait_readable<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    limit: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
    // Rounded up: less than a millisecond must not become a busy loop.
    let limit = limit.map(|limit| limit.as_nanos().div_ceil(1_000_000));
    let limit = limit.map(|ms| PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX));
    poll(&mut polled, limit)?;
    Ok(polled.map(|polled| polled.any().unwrap_or(true)))
}

/// Sends a signal to a process that was found, unless it has ended. Its parent may have reaped it since, and its id be another
/// process's by now: the descriptor is of one process, and the time of its start says whether that is the one that was found.
fn signal(found: &Stat, signal: Signal) -> Option<()> {
    let process = pidfd_open(Pid::from_raw(found.pid)?, PidfdFlags::empty()).ok()?;
    let now = Process::new(found.pid).and_then(|process| process.stat()).ok()?;
    (now.starttime == found.starttime).then(|| pidfd_send_signal(process, signal).ok())?
}

/// Kills a process that was found: a child with its process group, as the kernel then lets none of them start another meanwhile.
/// That group's id is no other's before the child is reaped, and the group is within a session that this process is not in.
fn kill(found: &Stat) {
    let group = getpgid(Pid::from_raw(found.pid)).ok();
    let is_child = found.ppid == std::process::id().cast_signed();
    match group.filter(|group| is_child && *group != getpgrp()) {
        Some(group) => drop(kill_process_group(group, Signal::KILL)),
        None => drop(signal(found, Signal::KILL)),
    }
}

/// All processes below this one that have not ended, the latest first, in whatever process group and session: a process that starts
/// another and stays alive keeps that from becoming a child of this one.
fn descendants() -> io::Result<Vec<Stat>> {
    let all = all_processes().map_err(io::Error::other)?;
    let mut by_parent: HashMap<i32, Vec<Stat>> = HashMap::new();
    // A process that ended meanwhile is no error.
    for stat in all.flatten().filter_map(|process| process.stat().ok()) {
        by_parent.entry(stat.ppid).or_default().push(stat);
    }
    let mut found = Vec::new();
    let mut parents = vec![(std::process::id().cast_signed(), 0)];
    while let Some((parent, started)) = parents.pop() {
        let mut children = by_parent.remove(&parent).unwrap_or_default();
        // One that is older had another parent with this id.
        children.retain(|child| child.starttime >= started);
        parents.extend(children.iter().map(|child| (child.pid, child.starttime)));
        found.append(&mut children);
    }
    // The first thread of a process may have ended before others.
    found.retain(|process| !matches!(process.state, 'Z' | 'X') || process.num_threads > 1);
    found.sort_by_key(|process| process.starttime);
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
        let pid = child.id().cast_signed();
        let is_found = || descendants().unwrap().into_iter().find(|process| process.pid == pid);
        // In the group of this process, which does not get the signal.
        kill(&is_found().unwrap());
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
        let pid = child.id().cast_signed();
        let found = descendants().unwrap().into_iter().find(|process| process.pid == pid).unwrap();
        let mut other = found.clone();
        other.starttime += 1;
        assert_eq!(signal(&other, Signal::KILL), None);
        assert_eq!(child.try_wait().unwrap(), None);
        assert_eq!(signal(&found, Signal::KILL), Some(()));
        child.wait().unwrap();
    }
}
