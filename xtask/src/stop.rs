//! SIGHUP, SIGINT and SIGTERM end this program and what it started: no other program and no other VM is started.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::process::text;

/// What is asked, and what runs.
struct State {
    signal: Option<i32>,
    /// Process groups of programs that run.
    groups: BTreeSet<Pid>,
}

impl State {
    fn check(&self) -> Result<()> {
        match self.signal {
            None => Ok(()),
            Some(signal) => bail!("ended by signal {signal}"),
        }
    }
}

static STATE: Mutex<State> = Mutex::new(State { signal: None, groups: BTreeSet::new() });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(|broken| broken.into_inner())
}

/// From now on a first signal ends all programs, and a second one this program at once.
pub(crate) fn at_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            let mut state = state();
            if state.signal.is_some() {
                std::process::exit(128 + signal);
            }
            state.signal = Some(signal);
            for group in &state.groups {
                // Fails only if all its processes are gone already.
                let _ = killpg(*group, Signal::SIGTERM);
            }
        }
    });
    Ok(())
}

/// The signal that has come.
pub(crate) fn signal() -> Option<i32> {
    state().signal
}

/// An error once a signal has come.
pub(crate) fn check() -> Result<()> {
    state().check()
}

/// Starts a program, unless a signal has come, and waits for its end by `wait`. It has a process group of its own: a
/// terminal's Ctrl-C reaches it through this program alone.
pub(crate) fn run<R>(
    command: &mut Command,
    wait: impl FnOnce(Child) -> io::Result<R>,
) -> Result<R> {
    let text = text(command);
    // Locked from the check until the group is known: a signal that comes meanwhile ends this program, too.
    let mut running = state();
    running.check()?;
    let child = command.process_group(0).spawn();
    let child = child.with_context(|| format!("cannot run `{text}`"))?;
    let group = Pid::from_raw(child.id().cast_signed());
    running.groups.insert(group);
    drop(running);
    let ended = wait(child);
    state().groups.remove(&group);
    ended.with_context(|| format!("cannot wait for `{text}`"))
}
