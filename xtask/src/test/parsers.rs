//! Short fuzzing of the parsers; speed of imports.

use std::path::Path;
use std::thread;

use anyhow::{Result, anyhow};

use super::report::Report;
use crate::fuzz;
use crate::paths::Paths;
use crate::speed;

/// How long each parser is fuzzed: for mistakes that a few inputs show.
const SECONDS: u32 = 2;
/// How many at once.
const AT_ONCE: usize = 4;
/// Size of the imported trace: large enough for start and end to be negligible, small enough for the script.
const MEGABYTES: u64 = 256;

/// The place of fuzzing.
pub(super) const FUZZ: &str = "fuzz";

/// Builds and fuzzes each parser.
pub(super) fn fuzzed(paths: &Paths, report: &mut Report) -> Result<()> {
    let Some(program) = report.step(FUZZ, "build", fuzz::build(paths, false)) else {
        return Ok(());
    };
    for targets in fuzz::targets().chunks(AT_ONCE) {
        let all = thread::scope(|scope| {
            let fuzz = |target: &&'static str| {
                let (program, target) = (&program, *target);
                (target, scope.spawn(move || fuzz::run(paths, program, target, SECONDS)))
            };
            let started: Vec<_> = targets.iter().map(fuzz).collect();
            let ended = started.into_iter().map(|(target, fuzzed)| {
                (target, fuzzed.join().unwrap_or_else(|_| Err(anyhow!("a panic, see above"))))
            });
            ended.collect::<Vec<_>>()
        });
        for (target, done) in all {
            if let Some(figures) = report.step(FUZZ, target, done) {
                println!("fuzz: {target}: {figures}");
            }
        }
    }
    Ok(())
}

/// Measures how fast `profiler` is.
pub(super) fn measured(paths: &Paths, profiler: &Path, report: &mut Report) {
    let figures = speed::import(paths, profiler, MEGABYTES);
    if let Some(figures) = report.step("speed", "import", figures) {
        println!("speed: import: {figures}");
    }
}
