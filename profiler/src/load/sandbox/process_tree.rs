//! All descendants of a process, and how to end them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use procfs::process::{Process, all_processes};
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::load::syscalls::{own_session_dying_with_parent, reap_any, wait_readable};

/// How long to wait after SIGKILL for a process in an uninterruptible sleep.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::load) enum Exit {
    /// With this exit code.
    Code(i32),
    /// Killed by the signal of this number.
    Signal(i32),
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match status.code() {
            Some(code) => Self::Code(code),
            None => Self::Signal(status.signal().unwrap_or_default()),
        }
    }
}

/// Makes this process the parent of all orphans below it (`PR_SET_CHILD_SUBREAPER`), and receives its
/// signals by a descriptor.
pub(in crate::load) struct Subreaper(SignalFd);

impl Subreaper {
    pub(in crate::load) fn new() -> io::Result<Self> {
        set_child_subreaper(true)?;
        // Blocked before any process is started, so that the end of none is missed. SIGINT and SIGHUP
        // may come from the terminal; the profiler gets them too and decides what happens.
        let mut signals = SigSet::empty();
        signals.extend([Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        signals.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self(SignalFd::with_flags(&signals, flags)?))
    }

    /// Takes all pending signals. True if SIGTERM is among them.
    pub(in crate::load) fn sigterm_received(&self) -> io::Result<bool> {
        let mut received = false;
        while let Some(signal) = self.0.read_signal()? {
            received |= signal.ssi_signo.cast_signed() == Signal::SIGTERM as i32;
        }
        Ok(received)
    }
}

impl AsFd for Subreaper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A child of this process, which has to be a [`Subreaper`], and all its descendants.
pub(in crate::load) struct ProcessTree {
    child: Pid,
    child_ended: bool,
    /// This process has no child left, so no descendant is left.
    empty: bool,
}

impl ProcessTree {
    /// Starts `command` as the leader of a session, with only the signals `blocked`, in the control group
    /// whose `cgroup.procs` is given.
    pub(in crate::load) fn start(
        command: &mut Command,
        cgroup: Option<File>,
        blocked: SigSet,
    ) -> io::Result<Self> {
        own_session_dying_with_parent(command, cgroup, blocked);
        let child = Pid::from_raw(command.spawn()?.id().cast_signed());
        Ok(Self { child, child_ended: false, empty: false })
    }

    /// Reaps all processes that have ended; how the child did, if it is among them.
    pub(in crate::load) fn reap(&mut self) -> io::Result<Option<Exit>> {
        let mut exit = None;
        loop {
            match reap_any() {
                Ok(Some((pid, status))) if pid == self.child.as_raw() => {
                    exit = Some(status.into());
                    self.child_ended = true;
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(exit),
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    self.empty = true;
                    return Ok(exit);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends all processes: SIGTERM, `grace`, SIGKILL; without the first two if `grace` is zero. Returns
    /// those that did not end.
    pub(in crate::load) fn end(
        mut self,
        grace: Duration,
        subreaper: &Subreaper,
    ) -> io::Result<Vec<i32>> {
        self.reap()?;
        if !grace.is_zero() && !self.empty {
            descendants()?.into_iter().for_each(terminate);
            self.wait_until(Instant::now() + grace, |tree| tree.empty, subreaper)?;
        }
        self.kill(subreaper)
    }

    /// As [`Self::end`], for a child that ends its own children: SIGTERM is sent to it alone, and what
    /// remains after its end is killed.
    pub(in crate::load) fn end_by_child(
        mut self,
        grace: Duration,
        subreaper: &Subreaper,
    ) -> io::Result<Vec<i32>> {
        self.reap()?;
        if !self.child_ended {
            terminate(self.child);
            let ended = |tree: &Self| tree.child_ended || tree.empty;
            self.wait_until(Instant::now() + grace, ended, subreaper)?;
        }
        self.kill(subreaper)
    }

    fn kill(mut self, subreaper: &Subreaper) -> io::Result<Vec<i32>> {
        let deadline = Instant::now() + KILL_TIMEOUT;
        // Repeatedly: a killed process may have forked meanwhile.
        while !self.empty && Instant::now() < deadline {
            for pid in descendants()? {
                signal(pid, &[rustix::process::Signal::KILL]);
            }
            let soon = Instant::now() + Duration::from_millis(20);
            self.wait_until(soon, |tree| tree.empty, subreaper)?;
        }
        Ok(if self.empty {
            Vec::new()
        } else {
            descendants()?.into_iter().map(Pid::as_raw).collect()
        })
    }

    /// Waits at most `timeout` for all processes to end by themselves; how many have not.
    pub(in crate::load) fn still_running(
        &mut self,
        timeout: Duration,
        subreaper: &Subreaper,
    ) -> io::Result<u64> {
        self.wait_until(Instant::now() + timeout, |tree| tree.empty, subreaper)?;
        Ok(if self.empty { 0 } else { descendants()?.len() as u64 })
    }

    /// Reaps until `done` or `deadline`.
    fn wait_until(
        &mut self,
        deadline: Instant,
        done: impl Fn(&Self) -> bool,
        subreaper: &Subreaper,
    ) -> io::Result<()> {
        loop {
            self.reap()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if done(self) || left.is_zero() {
                return Ok(());
            }
            wait_readable([subreaper.as_fd()], Some(left))?;
            subreaper.sigterm_received()?;
        }
    }
}

fn terminate(pid: Pid) {
    // A stopped process handles it only once it is continued.
    signal(pid, &[rustix::process::Signal::TERM, rustix::process::Signal::CONT]);
}

/// Sends signals to a descendant. Its own parent may have reaped it since it was found, and its pid be another process's by now:
/// the descriptor is of one process, and is of no use once that has given the pid back. Who its parents are is looked at
/// in between.
fn signal(pid: Pid, signals: &[rustix::process::Signal]) {
    let number = rustix::process::Pid::from_raw(pid.as_raw());
    let process = number.map(|number| pidfd_open(number, PidfdFlags::empty()));
    if let Some(Ok(process)) = process
        && is_descendant(pid)
    {
        for signal in signals {
            // It may have ended.
            let _ = pidfd_send_signal(&process, *signal);
        }
    }
}

/// Whether the process that has this pid now is below this one.
fn is_descendant(pid: Pid) -> bool {
    let parent = |pid: &i32| {
        Process::new(*pid).and_then(|process| process.stat()).ok().map(|stat| stat.ppid)
    };
    let me = nix::unistd::getpid().as_raw();
    // Reused pids could form a cycle.
    std::iter::successors(Some(pid.as_raw()), parent).take(1 << 16).skip(1).any(|at| at == me)
}

/// All living descendants of this process, from `/proc`, in whatever process group and session.
fn descendants() -> io::Result<Vec<Pid>> {
    let parent_of = |process: Process| {
        let stat = process.stat().ok()?;
        // A zombie cannot be killed again.
        (!matches!(stat.state, 'Z' | 'X')).then_some((stat.pid, stat.ppid))
    };
    // A process that ended meanwhile is no error.
    let all = all_processes().map_err(io::Error::other)?;
    let parents: HashMap<i32, i32> = all.flatten().filter_map(parent_of).collect();
    let me = nix::unistd::getpid().as_raw();
    let below_me = |pid: &i32| {
        // At most as many steps as processes: reused pids could form a cycle.
        std::iter::successors(Some(*pid), |at| parents.get(at).copied())
            .take(parents.len() + 1)
            .skip(1)
            .any(|ancestor| ancestor == me)
    };
    Ok(parents.keys().copied().filter(below_me).map(Pid::from_raw).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_cannot_hide_behind_a_name_like_a_line_of_proc() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("x) Z 1 (y");
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = Command::new(program).arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let found = descendants().unwrap();
        assert!(is_descendant(pid));
        signal(pid, &[rustix::process::Signal::KILL]);
        // A zombie is no living descendant.
        let killed = Instant::now();
        while descendants().unwrap().contains(&pid) {
            assert!(killed.elapsed() < Duration::from_secs(10));
        }
        child.wait().unwrap();
        assert!(found.contains(&pid), "{found:?}");
    }

    /// A pid that was listed and is another process's by now.
    #[test]
    fn only_processes_below_this_one_get_signals() {
        for other in [Pid::parent(), Pid::from_raw(1), Pid::from_raw(i32::MAX), Pid::this()] {
            assert!(!is_descendant(other), "{other}");
        }
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        signal(Pid::from_raw(child.id().cast_signed()), &[rustix::process::Signal::KILL]);
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
    }
}
