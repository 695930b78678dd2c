//! Which process made something that outlives it in the kernel, and whether that process is gone.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use procfs::{FromRead as _, process::Stat};
use serde::{Deserialize, Serialize};

/// `PF_EXITING` (include/linux/sched.h), among the flags in `/proc/PID/stat` (field 9): the process closes
/// its files and ends.
const EXITING: u32 = 0x4;

/// SIGKILL among the pending signals in `/proc/PID/stat` (field 31), which every thread of a killed process
/// has until it runs again.
const KILLED: u64 = 1 << (libc::SIGKILL - 1);

/// What is known of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Lives,
    /// It was killed, or exits: it may still have open files.
    Ends,
    /// It has ended, with all its threads and open files.
    Gone,
    /// It is of another PID namespace, whose numbers are not those of `/proc`.
    Unknown,
}

/// Identifies a process among all of a boot: process numbers are used again.
///
/// The start time is in ticks since the boot, as `/proc/PID/stat` has it (field 22). A time namespace
/// shifts it for those in it: a process in one is unknown to those outside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Life {
    /// Inode of the PID namespace that has its number.
    pub(super) namespace: u64,
    pub(super) pid: u32,
    pub(super) started: u64,
}

impl Life {
    /// This process; fields that `/proc` below `root` lacks are 0.
    pub(super) fn this(root: &Path) -> Self {
        let own = fs::read_to_string(root.join("proc/self/stat")).ok();
        Self {
            namespace: namespace(root).unwrap_or(0),
            pid: std::process::id(),
            started: own.as_deref().and_then(stat).map_or(0, |stat| stat.starttime),
        }
    }

    pub(super) fn state(&self, root: &Path) -> State {
        if !shows_own_namespace(root) || namespace(root) != Some(self.namespace) {
            return State::Unknown;
        }
        match fs::read_to_string(root.join(format!("proc/{}/stat", self.pid))) {
            Ok(text) => match stat(&text) {
                Some(stat) if has_ended(&stat) || stat.starttime != self.started => State::Gone,
                Some(stat) if stat.flags & EXITING != 0 || stat.signal & KILLED != 0 => State::Ends,
                _ => State::Lives,
            },
            // ESRCH is of one that ended while it was read.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                State::Gone
            }
            Err(_) => State::Lives,
        }
    }

    /// Whether the process is known to have ended, with all its threads and open files.
    pub(super) fn is_gone(&self, root: &Path) -> bool {
        self.state(root) == State::Gone
    }
}

/// As part of a name in tracefs: letters, digits and `_` alone.
impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, pid, started } = self;
        write!(f, "{namespace}_{pid}_{started}")
    }
}

impl FromStr for Life {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Option<Vec<u64>> = text.split('_').map(number).collect();
        let Some(&[namespace, pid, started]) = parts.as_deref() else { return Err(()) };
        Ok(Self { namespace, pid: pid.try_into().map_err(drop)?, started })
    }
}

/// A decimal number, digits alone.
pub(super) fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

fn stat(text: &str) -> Option<Stat> {
    Stat::from_read(text.as_bytes()).ok()
}

/// Whether no thread of a process is left and none of its files is open. It may be a zombie.
fn has_ended(stat: &Stat) -> bool {
    // The first thread may be dead where others are not.
    matches!(stat.state, 'Z' | 'X') && stat.num_threads <= 1
}

/// The PID namespace of this process: `pid:[4026531836]`.
fn namespace(root: &Path) -> Option<u64> {
    let link = fs::read_link(root.join("proc/self/ns/pid")).ok()?;
    number(link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?)
}

/// Whether `/proc` is that of this process' own PID namespace: `NSpid` has its numbers in all namespaces
/// from that of `/proc` down to its own.
fn shows_own_namespace(root: &Path) -> bool {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() == 1)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Has `/proc` below `root` show this process, in a namespace of which it shows `levels`.
    pub(in super::super) fn show_this(root: &Path, levels: usize) {
        let own = root.join("proc/self");
        fs::create_dir_all(own.join("ns")).unwrap();
        symlink("pid:[42]", own.join("ns/pid")).unwrap();
        fs::write(own.join("status"), format!("Name:\tx\nNSpid:{}\n", "\t7".repeat(levels)))
            .unwrap();
        show(root, std::process::id(), "R", 1, 1000);
        fs::write(own.join("stat"), stat("R", 1, 1000)).unwrap();
    }

    pub(in super::super) fn show(root: &Path, pid: u32, state: &str, threads: u32, started: u64) {
        let folder = root.join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("stat"), stat(state, threads, started)).unwrap();
    }

    /// Has `/proc` below `root` show a process that ends: as its first thread has these flags and
    /// pending signals.
    pub(in super::super) fn show_ending(root: &Path, pid: u32, flags: u32, pending: u64) {
        let folder = root.join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("stat"), stat_with("D", flags, 3, 1000, pending)).unwrap();
    }

    fn stat(state: &str, threads: u32, started: u64) -> String {
        stat_with(state, 0x40_0000, threads, started, 0)
    }

    fn stat_with(state: &str, flags: u32, threads: u32, started: u64, pending: u64) -> String {
        let times = "0 0 0 0 0 0 0 0 20 0";
        let memory = "0 0 0 0 0 0 0 0";
        format!(
            "77 (a ) b) {state} 1 1 1 0 -1 {flags} {times} {threads} 0 {started} {memory} {pending} 0 0 0 0 0 0\n"
        )
    }

    #[test]
    fn a_name_says_which_process_it_is_of() {
        let life = Life { namespace: 4_026_531_836, pid: 4_194_303, started: 17 };
        assert_eq!(life.to_string().parse(), Ok(life));
        for other in ["", "1_2", "1_2_3_4", "1_2_x", "+1_2_3", "1_4294967296_3"] {
            assert_eq!(other.parse::<Life>(), Err(()), "{other}");
        }
    }

    #[test]
    fn this_process_lives() {
        let root = Path::new("/");
        let life = Life::this(root);
        assert!(life.namespace > 0 && life.started > 0, "{life:?}");
        assert!(!life.is_gone(root));
        // One of the same number that began before.
        let before = Life { started: life.started - 1, ..life };
        assert_eq!(before.is_gone(root), shows_own_namespace(root));
    }

    #[test]
    fn a_killed_process_ends_before_it_is_gone() {
        let root = tempfile::tempdir().unwrap();
        show_this(root.path(), 1);
        let life = Life { namespace: 42, pid: 77, started: 1000 };
        for (flags, pending, state) in [
            (0x40_0000, 0, State::Lives),
            // SIGUSR1 and SIGTERM wait.
            (0x40_0000, 0x4200, State::Lives),
            (0x40_0000, 0x100, State::Ends),
            // Within do_exit().
            (0x40_0004, 0, State::Ends),
        ] {
            show_ending(root.path(), 77, flags, pending);
            assert_eq!(life.state(root.path()), state, "{flags:#x} {pending:#x}");
            assert!(!life.is_gone(root.path()), "{flags:#x} {pending:#x}");
        }
        assert_eq!(Life { started: 999, ..life }.state(root.path()), State::Gone);
        assert_eq!(Life { namespace: 43, ..life }.state(root.path()), State::Unknown);
    }

    /// A child that was killed and that nobody has waited for.
    #[test]
    fn the_state_of_a_real_process() {
        let root = Path::new("/");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let started = super::stat(&text).unwrap().starttime;
        let life = Life { pid: child.id(), started, ..Life::this(root) };
        let before = life.state(root);
        child.kill().unwrap();
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let mut after = life.state(root);
        while matches!(after, State::Lives | State::Ends) && std::time::Instant::now() < patience {
            after = life.state(root);
        }
        child.wait().unwrap();
        let known = shows_own_namespace(root);
        let expected =
            if known { (State::Lives, State::Gone) } else { (State::Unknown, State::Unknown) };
        assert_eq!((before, after), expected);
    }

    #[test]
    fn only_processes_of_the_own_namespace_are_known_to_be_gone() {
        let root = tempfile::tempdir().unwrap();
        show_this(root.path(), 1);
        let this = Life::this(root.path());
        assert_eq!((this.namespace, this.started), (42, 1000));
        let life = Life { namespace: 42, pid: 77, started: 5 };
        assert!(life.is_gone(root.path()), "there is none of this number");
        assert!(!Life { namespace: 43, ..life }.is_gone(root.path()));
        for (state, threads, started, gone) in [
            ("S", 3, 5, false),
            ("S", 3, 6, true),
            // Its first thread has ended, another one has not.
            ("Z", 2, 5, false),
            ("Z", 1, 5, true),
            ("X", 0, 5, true),
        ] {
            show(root.path(), 77, state, threads, started);
            assert_eq!(life.is_gone(root.path()), gone, "{state} {threads} {started}");
        }
        // `/proc` is that of another namespace, where 77 is anybody.
        let outer = tempfile::tempdir().unwrap();
        show_this(outer.path(), 2);
        assert!(!life.is_gone(outer.path()));
    }
}
