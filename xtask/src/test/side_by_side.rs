//! Runs boots side by side. Each uses one CPU of this machine at most and waits much of the time: two at a time left two
//! CPUs idle for 40 % of a whole run.

use std::num::NonZero;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::Result;

use super::report::{Report, Status};
use crate::stop;

/// Runs all tests, or those of these names, and reports each.
type Run<'a> = Box<dyn Fn(&[String], &mut Report) -> Result<()> + Send + Sync + 'a>;

/// Tests of one place.
pub(super) struct Job<'a> {
    /// Its name in the report.
    pub(super) place: String,
    pub(super) run: Run<'a>,
}

impl<'a> Job<'a> {
    pub(super) fn new(
        place: impl Into<String>,
        run: impl Fn(&[String], &mut Report) -> Result<()> + Send + Sync + 'a,
    ) -> Self {
        Self { place: place.into(), run: Box::new(run) }
    }

    /// Runs all its tests. A job that returns an error or panics is a failure.
    fn all(&self) -> Report {
        let mut report = Report::default();
        let run = AssertUnwindSafe(|| (self.run)(&[], &mut report));
        let why = match std::panic::catch_unwind(run) {
            Ok(Ok(())) => return report,
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "a panic, see above".to_owned(),
        };
        eprintln!("error: {}: {why}", self.place);
        report.add(&self.place, "(all)", Status::NotRun(why));
        report
    }
}

/// Runs all jobs, three at a time on two CPUs, and after a signal no other. Adds their results to the report.
pub(super) fn run(jobs: &[Job<'_>], report: &mut Report) {
    let width = thread::available_parallelism().map_or(1, NonZero::get);
    on(width + width / 2, jobs, report);
}

fn on(width: usize, jobs: &[Job<'_>], report: &mut Report) {
    let (waiting, report) = (Mutex::new(jobs.iter()), Mutex::new(report));
    thread::scope(|scope| {
        for _ in 0..width.min(jobs.len()) {
            scope.spawn(|| {
                while let Some(job) = next(&waiting) {
                    let own = job.all();
                    report.lock().unwrap_or_else(PoisonError::into_inner).append(own);
                }
            });
        }
    });
}

fn next<'a>(waiting: &Mutex<impl Iterator<Item = &'a Job<'a>>>) -> Option<&'a Job<'a>> {
    stop::check().ok()?;
    waiting.lock().unwrap_or_else(PoisonError::into_inner).next()
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
        let job = |name: &'static str| {
            let file = folder.join(name);
            Job::new(name, move |_, _| {
                let script = "echo $$ >$0.new; mv $0.new $0; exec sleep 1000";
                process::run(Command::new("sh").args(["-c", script]).arg(&file))
            })
        };
        let mut report = Report::default();
        on(2, &[job("first"), job("second"), job("third")], &mut report);
        std::process::exit(stop::code().unwrap_or_default().into());
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
    fn jobs_run_at_once_and_report() {
        // Nobody passes the barrier unless two are at work.
        let barrier = Barrier::new(2);
        let job = |place: &str| {
            Job::new(place, |_, report| {
                barrier.wait();
                report.add("somewhere", "a test", Status::Passed);
                Ok(())
            })
        };
        let mut report = Report::default();
        on(2, &[job("a"), job("b")], &mut report);
        assert!(report.is_green());
        assert!(report.summary().contains("2 passed"), "{}", report.summary());
    }

    #[test]
    fn a_job_that_breaks_is_a_failure() {
        let bad = Job::new("bad", |_, _| anyhow::bail!("it is broken"));
        let worse = Job::new("worse", |_, _| panic!("on purpose"));
        let good = Job::new("good", |_, report| {
            report.add("good", "a test", Status::Passed);
            Ok(())
        });
        let mut report = Report::default();
        on(1, &[bad, worse, good], &mut report);
        assert!(!report.is_green());
        assert!(report.summary().contains("not run: bad: (all): it is broken"));
        assert!(report.summary().contains("not run: worse: (all): a panic, see above"));
        assert!(report.summary().contains("1 passed"), "{}", report.summary());
    }
}
