//! Short fuzzing of the parsers; speed of imports and merges.

use std::thread;

use anyhow::anyhow;

use super::report::Report;
use crate::cargo;
use crate::fuzz;
use crate::paths::Paths;
use crate::speed;

/// How long each parser is fuzzed.
const SECONDS: u32 = 10;
/// Size of the imported trace: large enough for start and end to be negligible, small enough for the script.
const MEGABYTES: u64 = 256;

pub(super) fn run(paths: &Paths, report: &mut Report) {
    fuzzed(paths, report);
    measured(paths, report);
}

fn fuzzed(paths: &Paths, report: &mut Report) {
    const PLACE: &str = "fuzz";
    let Some(programs) = report.step(PLACE, "build", fuzz::build(paths)) else { return };
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
        if let Some(figures) = report.step(PLACE, target, done) {
            println!("fuzz: {target}: {figures}");
        }
    }
}

fn measured(paths: &Paths, report: &mut Report) {
    const PLACE: &str = "speed";
    let Some(tested) = report.step(PLACE, "build", cargo::build_tests(paths)) else { return };
    for (name, figures) in [
        ("import", speed::import(paths, &tested.profiler, MEGABYTES)),
        ("merge", speed::merge(paths, &tested.profiler)),
    ] {
        if let Some(figures) = report.step(PLACE, name, figures) {
            println!("speed: {name}: {figures}");
        }
    }
}
