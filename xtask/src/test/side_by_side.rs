//! Runs boots side by side. Each uses one CPU of this machine at most and waits much of the time: two at a time left two
//! CPUs idle for 40 % of a whole run.

use std::num::NonZero;
use std::sync::Mutex;
use std::thread;

use anyhow::Result;

use super::report::{Report, Status};

/// Runs tests and reports each.
type Run<'a> = Box<dyn FnOnce(&mut Report) -> Result<()> + Send + 'a>;

/// Tests of one place.
pub(super) struct Job<'a> {
    /// Its name in the report.
    place: String,
    /// Runs them.
    run: Run<'a>,
}

impl<'a> Job<'a> {
    pub(super) fn new(
        place: impl Into<String>,
        run: impl FnOnce(&mut Report) -> Result<()> + Send + 'a,
    ) -> Self {
        Self { place: place.into(), run: Box::new(run) }
    }
}

/// Runs all jobs, three at a time on two CPUs. Adds their results to the report in the jobs' order. A job that returns an error
/// or panics is a failure at its place.
pub(super) fn run(jobs: Vec<Job<'_>>, report: &mut Report) {
    let width = thread::available_parallelism().map_or(1, NonZero::get);
    on(width + width / 2, jobs, report);
}

fn on(width: usize, jobs: Vec<Job<'_>>, report: &mut Report) {
    let count = jobs.len();
    let waiting = Mutex::new(jobs.into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = waiting.lock().unwrap_or_else(|broken| broken.into_inner()).next();
            let Some((number, job)) = next else { break };
            let mut own = Report::default();
            let place = job.place.clone();
            let caught =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (job.run)(&mut own)));
            let broken = match caught {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(format!("{error:#}")),
                Err(_) => Some("a panic, see above".to_owned()),
            };
            if let Some(why) = broken {
                eprintln!("error: {place}: {why}");
                own.add(&place, "(all)", Status::NotRun(why));
            }
            own.lap(&place);
            done.lock().unwrap_or_else(|broken| broken.into_inner()).push((number, own));
        }
    };
    thread::scope(|scope| {
        for _ in 0..width.min(count) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(|broken| broken.into_inner());
    done.sort_by_key(|(number, _)| *number);
    for (_, own) in done {
        report.append(own);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn jobs_run_at_once_and_report_in_their_order() {
        // Nobody passes the barrier unless two are at work.
        let barrier = Barrier::new(2);
        let job = |place: &str| {
            Job::new(place, |report| {
                barrier.wait();
                report.add("somewhere", "a test", Status::Passed);
                Ok(())
            })
        };
        let mut report = Report::default();
        on(2, vec![job("a"), job("b")], &mut report);
        assert!(report.is_green());
        assert!(report.summary().contains("2 passed"), "{}", report.summary());
    }

    #[test]
    fn a_job_that_breaks_is_a_failure() {
        let broken: [Run<'_>; 2] =
            [Box::new(|_| anyhow::bail!("it is broken")), Box::new(|_| panic!("on purpose"))];
        for run in broken {
            let good = Job::new("good", |report| {
                report.add("good", "a test", Status::Passed);
                Ok(())
            });
            let mut report = Report::default();
            on(1, vec![Job { place: "bad".to_owned(), run }, good], &mut report);
            assert!(!report.is_green());
            assert!(report.summary().contains("1 passed"), "{}", report.summary());
        }
    }
}
