//! The processes below a guard: nothing that a load starts outlives it.
//!
//! The guard is the reaper of all orphans below it (`PR_SET_CHILD_SUBREAPER`), so that even a daemon that
//! left its session stays its descendant, and "no child left" means that nothing is left.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;

use super::sys;

/// How long a process in an uninterruptible sleep is waited for after SIGKILL.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// Everything below this process.
pub(super) struct Family {
    /// The child that all others come from.
    command: Pid,
    /// That child takes its own children down when it is asked to end.
    reports: bool,
    /// That child has ended.
    ended: bool,
    /// No child is left, so nothing is.
    empty: bool,
}

impl Family {
    /// The family of a child just started. This process has to be the reaper of orphans below it.
    pub(super) fn of(command: Pid) -> Self {
        Self { command, reports: false, ended: false, empty: false }
    }

    /// Whether the child reports for itself and takes its own children down: it alone is asked to end,
    /// and what it leaves is killed.
    pub(super) fn reporting(mut self, reports: bool) -> Self {
        self.reports = reports;
        self
    }

    /// Takes in all who have ended; the status of the command once it has.
    pub(super) fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        let mut ended = None;
        loop {
            let (pid, status) = match sys::reap_any() {
                Ok(Some(reaped)) => reaped,
                Ok(None) => return Ok(ended),
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    self.empty = true;
                    return Ok(ended);
                }
                Err(error) => return Err(error),
            };
            if pid == self.command.as_raw() {
                ended = Some(status);
                self.ended = true;
            }
        }
    }

    /// Ends all who are left: SIGTERM, time to end, SIGKILL; without the first two where the grace is
    /// none. Returns those that did not go away.
    pub(super) fn end(&mut self, grace: Duration, signals: &SignalFd) -> io::Result<Vec<i32>> {
        self.reap()?;
        let over = self.empty || (self.reports && self.ended);
        if !grace.is_zero() && !over {
            let asked = if self.reports { vec![self.command] } else { descendants()? };
            for pid in asked {
                let _ = kill(pid, Signal::SIGTERM);
                // One that is stopped would not hear it.
                let _ = kill(pid, Signal::SIGCONT);
            }
            self.wait_until(Instant::now() + grace, self.reports, signals)?;
        }
        let patience = Instant::now() + KILL_PATIENCE;
        // Again and again: what is killed may have forked meanwhile.
        while !self.empty && Instant::now() < patience {
            for pid in descendants()? {
                let _ = kill(pid, Signal::SIGKILL);
            }
            self.wait_until(Instant::now() + Duration::from_millis(20), false, signals)?;
        }
        if self.empty {
            return Ok(Vec::new());
        }
        Ok(descendants()?.into_iter().map(Pid::as_raw).collect())
    }

    /// Waits at most so long for the rest to end by itself; how many have not.
    pub(super) fn stragglers(&mut self, patience: Duration, signals: &SignalFd) -> io::Result<u64> {
        self.reap()?;
        if self.empty {
            return Ok(0);
        }
        self.wait_until(Instant::now() + patience, false, signals)?;
        Ok(if self.empty { 0 } else { descendants()?.len() as u64 })
    }

    /// Reaps until nothing is left, or only what the ended child left if that is `enough`, or `limit`
    /// has come.
    fn wait_until(&mut self, limit: Instant, enough: bool, signals: &SignalFd) -> io::Result<()> {
        loop {
            self.reap()?;
            let left = limit.saturating_duration_since(Instant::now());
            if self.empty || (enough && self.ended) || left.is_zero() {
                return Ok(());
            }
            sys::wait_readable([signals.as_fd()], Some(left))?;
            while signals.read_signal()?.is_some() {}
        }
    }
}

/// All living processes below this one, from `/proc`: they may be in any group and session.
fn descendants() -> io::Result<Vec<Pid>> {
    let mut parents = HashMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // A process that ended since the folder was read is no error.
        let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { continue };
        if let Some(parent) = living_parent(&stat) {
            parents.insert(pid, parent);
        }
    }
    let me = nix::unistd::getpid().as_raw();
    let below_me = |pid: &i32| {
        let mut at = *pid;
        // As many steps as there are processes: pids reused while we read could close a ring.
        for _ in 0..=parents.len() {
            match parents.get(&at) {
                Some(&parent) if parent == me => return true,
                Some(&parent) => at = parent,
                None => return false,
            }
        }
        false
    };
    Ok(parents.keys().copied().filter(below_me).map(Pid::from_raw).collect())
}

/// The parent's pid in a line of `/proc/PID/stat`; `None` for a zombie, which cannot be killed again.
fn living_parent(stat: &[u8]) -> Option<i32> {
    // The name before it stands in brackets and may hold brackets and spaces: the last one closes it.
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_hide_the_parent() {
        assert_eq!(living_parent(b"7 (a) S 9 (b) S 12 7 7 0"), Some(12));
        assert_eq!(living_parent(b"7 (sh) Z 12 7 7 0"), None);
        assert_eq!(living_parent(b"7 (sh)"), None);
        assert_eq!(living_parent(b""), None);
    }
}
