//! The second run of tests that failed. CI runs 1,200 tests on machines that others use too; one that passes when it is run again,
//! alone, is reported as unstable and does not fail the run. It is a fault nevertheless: of the test, or of what it found.

use std::path::Path;

use anyhow::Result;

use super::plan::Boot;
use super::report::Report;
use super::{BootContext, HOST, VM_PLACE, cargo_test, lab};
use crate::cargo;
use crate::paths::Paths;
use crate::stop;

/// With more failures than this no test runs again: something is broken.
const MOST: usize = 3;

/// The part of a boot that it is, for files of its own.
const PART: usize = 99;

/// Runs the tests that failed once more, place by place, if they are few.
pub(super) fn run(
    paths: &Paths,
    host_tests: &Path,
    bench: &BootContext<'_>,
    boots: &[Boot],
    report: &mut Report,
) -> Result<()> {
    let failed = report.failed();
    if failed.is_empty() || failed.iter().map(|(_, tests)| tests.len()).sum::<usize>() > MOST {
        return Ok(());
    }
    let is_run = |place: &str| place == HOST || place == lab::PLACE || place.starts_with(VM_PLACE);
    for (place, tests) in failed.into_iter().filter(|(place, _)| is_run(place)) {
        stop::check()?;
        let mut second = Report::default();
        println!("test: again, alone: {place}: {}", tests.join(", "));
        let done = one(paths, host_tests, bench, boots, &place, &tests, &mut second);
        if let Err(error) = done {
            eprintln!("error: {place}: {error:#}");
            continue;
        }
        report.amend(&second);
    }
    report.lap("again");
    Ok(())
}

/// Runs these tests of one place.
fn one(
    paths: &Paths,
    host_tests: &Path,
    bench: &BootContext<'_>,
    boots: &[Boot],
    place: &str,
    tests: &[String],
    second: &mut Report,
) -> Result<()> {
    if place == HOST {
        for which in [&cargo::UNIT_TESTS[..], &["--test", "host"], &["--doc"]] {
            cargo_test(paths, which, tests, second)?;
        }
    } else if place == lab::PLACE {
        lab::run(paths, host_tests, tests, second)?;
    } else if let Some(boot) = boots.iter().find(|boot| place == format!("{VM_PLACE}{}", boot.name))
    {
        bench.boot(&Boot { tests: tests.to_vec(), part: PART, ..boot.clone() }, second)?;
    }
    Ok(())
}
