//! Short fuzzing of the parsers; speed of imports and merges.

use std::path::Path;
use std::thread;

use anyhow::{Result, anyhow};

use super::report::Report;
use crate::fuzz;
use crate::paths::Paths;
use crate::speed;

/// How long each parser is fuzzed.
const SECONDS: u32 = 10;
/// Size of the imported trace: large enough for start and end to be negligible, small enough for the script.
const MEGABYTES: u64 = 256;

/// The place of fuzzing.
pub(super) const FUZZ: &str = "fuzz";

/// Builds and fuzzes each parser.
pub(super) fn fuzzed(paths: &Paths, report: &mut Report) -> Result<()> {
    let Some(programs) = report.step(FUZZ, "build", fuzz::build(paths)) else { return Ok(()) };
    let all = thread::scope(|scope| {
        let fuzz = |target| {
            let programs = &programs;
            (target, scope.spawn(move || fuzz::run(paths, programs, target, SECONDS)))
        };
        fuzz::TARGETS.map(fuzz).map(|(target, fuzzed)| {
            (target, fuzzed.join().unwrap_or_else(|_| Err(anyhow!("a panic, see above"))))
        })
    });
    for (target, done) in all {
        if let Some(figures) = report.step(FUZZ, target, done) {
            println!("fuzz: {target}: {figures}");
        }
    }
    Ok(())
}

/// Measures how fast `profiler` is.
pub(super) fn measured(paths: &Paths, profiler: &Path, report: &mut Report) {
    const PLACE: &str = "speed";
    for (name, figures) in [
        ("import", speed::import(paths, profiler, MEGABYTES)),
        ("merge", speed::merge(paths, profiler)),
    ] {
        if let Some(figures) = report.step(PLACE, name, figures) {
            println!("speed: {name}: {figures}");
        }
    }
}
