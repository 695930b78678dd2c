//! The second run of tests that failed. CI runs 1,200 tests on machines that others use too; one that passes when it is run again,
//! alone, is reported as unstable and does not fail the run. It is a fault nevertheless: of the test, or of what it found.

use anyhow::Result;

use super::report::Report;
use super::side_by_side::Job;
use crate::stop;

/// With more failures than this no test runs again: something is broken.
const MOST: usize = 3;

/// Runs the tests of these jobs that failed once more, job by job, if they are few.
pub(super) fn run(jobs: &[Job<'_>], report: &mut Report) -> Result<()> {
    let failed = report.failed();
    if failed.len() > MOST {
        return Ok(());
    }
    for job in jobs {
        let of_job = failed.iter().filter(|(place, _)| *place == job.place);
        let tests: Vec<String> = of_job.map(|(_, test)| test.clone()).collect();
        if tests.is_empty() {
            continue;
        }
        stop::check()?;
        println!("test: again, alone: {}: {}", job.place, tests.join(", "));
        let mut second = Report::default();
        match (job.run)(&tests, &mut second) {
            Ok(()) => report.amend(&second),
            Err(error) => eprintln!("error: {}: {error:#}", job.place),
        }
    }
    Ok(())
}
