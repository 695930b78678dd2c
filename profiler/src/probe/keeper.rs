//! The hidden program that puts tracefs back when the profiler is killed.
//!
//! What is changed in tracefs outlives the process that changed it. So the keeper is there before the
//! first change, and waits for the end of its input, a pipe that the profiler alone can write to: a byte
//! is the end in good order, at which it has nothing to do, and the closing is the profiler's death. Then
//! it does what the next start of the profiler would do as well: [`put_back`].
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

use super::ftrace::{self, Recovered};
use super::kprobe_event;
use super::life::Life;
use super::sys;

/// First argument of the hidden program; the second is the [`Life`] of the profiler.
const ARGUMENT: &str = "__keeper";

/// How long the profiler may still be about to end after its end of the pipe was closed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Undoes what profilers that were killed have left in tracefs: says what function-graph's journal had.
/// Safe to be called by several processes at once.
///
/// # Errors
/// When there is a journal that cannot be read.
pub fn put_back(root: &Path) -> io::Result<Option<Recovered>> {
    kprobe_event::remove_leftovers();
    ftrace::recover(root)
}

/// A keeper of this process. Dropping it ends the keeper and waits for that.
#[derive(Debug)]
pub(super) struct Keeper(Child);

impl Keeper {
    /// Starts a keeper, and waits until nothing but SIGKILL can end it.
    ///
    /// # Errors
    /// If that fails. Nothing must be changed then: a promise that holds on most days is none, nothing has
    /// been changed yet, and a machine that has no room for one small process has none for a load either.
    pub(super) fn start() -> io::Result<Self> {
        // Found also when the program's file was replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.arg(ARGUMENT).arg(Life::this(Path::new("/")).to_string()).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        sys::leading_own_session(&mut command);
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
            // One that has been killed needs no word.
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
    let (Some(profiler), Ok(()), Ok(())) = (profiler, SigSet::all().thread_block(), close_others())
    else {
        return 2;
    };
    // A profiler that does not read it is dead, which the input tells.
    let _ = io::stdout().write_all(b"\n").and_then(|()| io::stdout().flush());
    if !is_orphaned() {
        return 0;
    }
    let root = Path::new("/");
    let patience = Instant::now() + PATIENCE;
    while !profiler.is_gone(root) && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(5));
    }
    // What cannot be put back stays in the journal, and the next start says so.
    put_back(root).map_or(1, |_| 0)
}

/// Waits for the profiler's word, or its death.
fn is_orphaned() -> bool {
    loop {
        match io::stdin().read(&mut [0]) {
            Ok(length) => return length == 0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return true,
        }
    }
}

/// Closes what the profiler's own starter has left open, such as a lock's file or a pipe: whoever waits for
/// its end waits for the profiler's.
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
