//! The hidden program that puts tracefs back when the profiler is killed.
//!
//! Changes in tracefs outlive the process that made them. So the keeper starts before the first change and
//! waits on its input, a pipe that only the profiler can write to. A byte means a regular end: nothing is
//! left to do. End of file means that the profiler was killed: then the keeper does what the next start of
//! the profiler would do as well, [`put_back`].
//!
//! It leads a session of its own, blocks all signals that can be blocked, and has neither a folder nor an
//! open file of the profiler's. What kills it together with the profiler all the same: the end of a whole
//! control group or PID namespace, such as a container's, or of the machine.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;

use super::ftrace;
use super::kprobe_event;
use super::life::{Life, State};

/// First argument of the hidden program; the second is the [`Life`] of the profiler.
const ARGUMENT: &str = "__keeper";

/// How long the profiler may still be about to end after its end of the pipe was closed, and others may use
/// what it has left: a keeper has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(300);

/// The same for a profiler whose end cannot be seen: `/proc` is that of another PID namespace.
const PATIENCE_UNSEEN: Duration = Duration::from_secs(2);

/// Undoes what profilers that were killed have left in tracefs; what those that live have changed stays. Returns what was put
/// back, in words. Safe to be called by several processes at once.
///
/// # Errors
/// The same with what could not be put back.
pub fn put_back(root: &Path) -> Result<String, String> {
    const LEFT: &str =
        "kprobe events of a killed profiler are left: others use them, or tracefs is read-only";
    let events = (!kprobe_event::remove_leftovers()).then(|| LEFT.to_owned());
    let journal = ftrace::recover(root);
    let journal = journal.map_err(|error| format!("tracefs cannot be put back: {error}"))?;
    let is_all = events.is_none() && journal.as_ref().is_none_or(|found| found.failed.is_empty());
    let parts: Vec<String> =
        journal.map(|found| found.to_string()).into_iter().chain(events).collect();
    if is_all { Ok(parts.join("; ")) } else { Err(parts.join("; ")) }
}

/// A keeper of this process. Dropping it ends the keeper and waits for its end.
#[derive(Debug)]
pub(super) struct Keeper(Child);

impl Keeper {
    /// Starts a keeper, and waits until only SIGKILL can end it.
    ///
    /// # Errors
    /// If that fails. Then tracefs must not be changed, because nothing would restore it after a kill.
    pub(super) fn start() -> io::Result<Self> {
        // Found also when the program's file was replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.arg(ARGUMENT).arg(Life::this(Path::new("/")).to_string()).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = Self(command.spawn()?);
        let answer = keeper.0.stdout.take().map(|mut answer| answer.read_exact(&mut [0]));
        match answer {
            Some(Ok(())) => Ok(keeper),
            _ => {
                let status = keeper.0.wait()?;
                Err(io::Error::other(format!("it ended at once, with {status}")))
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            // If this fails, the keeper was killed.
            let _ = input.write_all(b"\n");
        }
        let _ = self.0.wait();
    }
}

/// Becomes a keeper and exits, if this process was started as one; returns otherwise.
///
/// Call it first thing in `main` of a program that sets [`Options::keeper`](super::Options::keeper).
pub fn become_keeper_if_asked() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == ARGUMENT) {
        std::process::exit(keep(args.next()));
    }
}

fn keep(profiler: Option<OsString>) -> i32 {
    let profiler = profiler.and_then(|life| life.to_str()?.parse::<Life>().ok());
    let (Some(profiler), Ok(_), Ok(()), Ok(())) =
        (profiler, nix::unistd::setsid(), SigSet::all().thread_block(), close_others())
    else {
        return 2;
    };
    // If this fails, the profiler is dead, and the input will end.
    let _ = io::stdout().write_all(b"\n").and_then(|()| io::stdout().flush());
    if !is_orphaned() {
        return 0;
    }
    let root = Path::new("/");
    let patience = if profiler.state(root) == State::Unknown { PATIENCE_UNSEEN } else { PATIENCE };
    // What cannot be put back stays in the journal, and the next start says so.
    let done = once_gone(&profiler, root, patience, || put_back(root).is_ok());
    if done { 0 } else { 1 }
}

/// Puts back what a profiler has left, once it is gone, until that is done: whether it is in the end.
/// It is tried, too, where the patience ends before the profiler does.
fn once_gone(
    profiler: &Life,
    root: &Path,
    patience: Duration,
    mut put_back: impl FnMut() -> bool,
) -> bool {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        let is_late = begun.elapsed() >= patience;
        if is_late || profiler.is_gone(root) {
            let is_done = put_back();
            if is_done || is_late {
                return is_done;
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Waits for the profiler's byte, or for its end. No signal interrupts it: all are blocked.
fn is_orphaned() -> bool {
    !matches!(io::stdin().read(&mut [0]), Ok(1))
}

/// Closes files inherited from the profiler's parent, such as a lock or a pipe: others may wait until the profiler
/// has closed them.
fn close_others() -> io::Result<()> {
    let numbers: Vec<i32> = fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for number in numbers.into_iter().filter(|number| *number > libc::STDERR_FILENO) {
        // The list's own is closed by now.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::tests::{show, show_ending, show_this};

    fn profiler() -> (tempfile::TempDir, Life) {
        let root = tempfile::tempdir().unwrap();
        show_this(root.path(), 1);
        show_ending(root.path(), 77, 0x40_0004, 0);
        (root, Life { namespace: 42, pid: 77, started: 1000 })
    }

    /// Longer than the 2 s that a keeper once waited.
    #[test]
    fn a_profiler_that_is_long_about_to_end_is_waited_for() {
        let (root, profiler) = profiler();
        let folder = root.path().to_owned();
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(2500));
            show(&folder, 77, "Z", 1, 1000);
        });
        let mut tries = 0;
        let is_done = once_gone(&profiler, root.path(), PATIENCE, || {
            tries += 1;
            assert!(profiler.is_gone(root.path()), "it does not wait");
            true
        });
        ending.join().unwrap();
        assert_eq!((is_done, tries), (true, 1));
    }

    #[test]
    fn what_somebody_still_uses_is_tried_again() {
        let (root, profiler) = profiler();
        show(root.path(), 77, "Z", 1, 1000);
        let mut tries = 0;
        let mut in_use_until_the_third = || {
            tries += 1;
            tries == 3
        };
        assert!(once_gone(&profiler, root.path(), PATIENCE, &mut in_use_until_the_third));
        assert_eq!(tries, 3);
    }

    #[test]
    fn a_keeper_does_not_wait_for_ever() {
        let (root, profiler) = profiler();
        for is_done in [false, true] {
            let mut tries = 0;
            let patience = Duration::from_millis(50);
            let ended = once_gone(&profiler, root.path(), patience, || {
                tries += 1;
                is_done
            });
            assert_eq!((ended, tries), (is_done, 1));
        }
    }
}
