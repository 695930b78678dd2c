//! Runs boots side by side. Each uses one CPU of this machine at most and waits much of the time: two at a time left two
//! CPUs idle for 40 % of a whole run.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::stop;

/// Does all jobs, three at a time on two CPUs, and after a signal no other.
pub(super) fn run<T: Sync>(jobs: &[T], work: impl Fn(&T) + Sync) {
    let width = thread::available_parallelism().map_or(1, NonZero::get);
    on(width + width / 2, jobs, work);
}

fn on<T: Sync>(width: usize, jobs: &[T], work: impl Fn(&T) + Sync) {
    let waiting = Mutex::new(jobs.iter());
    let next = || {
        stop::check().ok()?;
        waiting.lock().unwrap_or_else(PoisonError::into_inner).next()
    };
    thread::scope(|scope| {
        for _ in 0..width.min(jobs.len()) {
            scope.spawn(|| {
                while let Some(job) = next() {
                    work(job);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::Barrier;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;
    use crate::process;

    /// Set in the process that stands in for `cargo xtask test`: a folder.
    const STAND_IN: &str = "XTASK_STAND_IN";

    /// Three jobs, two at a time, whose programs write their ids to the folder and do not end.
    #[test]
    fn stand_in() {
        let Some(folder) = std::env::var_os(STAND_IN).map(PathBuf::from) else { return };
        stop::at_signals().unwrap();
        on(2, &["first", "second", "third"], |name| {
            let script = "echo $$ >$0.new; mv $0.new $0; exec sleep 1000";
            let file = folder.join(name);
            process::run(Command::new("sh").args(["-c", script]).arg(&file)).unwrap_err();
        });
        std::process::exit(128 + stop::signal().unwrap_or_default());
    }

    #[test]
    fn a_signal_ends_what_runs_and_starts_no_other() {
        for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
            let folder = tempfile::tempdir().unwrap();
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "test::side_by_side::tests::stand_in"]);
            let mut child = command.env(STAND_IN, folder.path()).spawn().unwrap();
            let programs = ["first", "second"].map(|name| {
                let file = folder.path().join(name);
                while !file.exists() {
                    assert_eq!(child.try_wait().unwrap(), None, "it ended early");
                    thread::sleep(std::time::Duration::from_millis(10));
                }
                fs::read_to_string(file).unwrap().trim().parse::<i32>().unwrap()
            });
            kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(128 + signal as i32), "{signal}");
            assert!(!folder.path().join("third").exists(), "{signal}: it starts the next");
            for program in programs {
                let gone = kill(Pid::from_raw(program), None);
                assert_eq!(gone, Err(nix::errno::Errno::ESRCH), "{signal}: its program goes on");
            }
        }
    }

    #[test]
    fn jobs_run_at_once() {
        // Nobody passes the barrier unless two are at work.
        let barrier = Barrier::new(2);
        let done = Mutex::new(Vec::new());
        on(2, &["a", "b"], |job| {
            barrier.wait();
            done.lock().unwrap().push(*job);
        });
        done.lock().unwrap().sort_unstable();
        assert_eq!(*done.lock().unwrap(), ["a", "b"]);
    }
}
