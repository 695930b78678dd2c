//! Functions that a glob matches are measured, or left out with a reason; only a name that cannot be measured is an error.

use std::collections::BTreeMap;

use profiler_base::error::exit;
use profiler_recording::{Backend, Recording};

use crate::cli::{Ended, assert_whole, folder, handler, profiler, saved};
use crate::testbed::{self, Counters};

const TRIGGERS: &str = "twins 25\nmany 30\ntrivial 5\nrecurse 4";

/// A shell that gives each line to the module.
fn triggers() -> [String; 3] {
    let script = format!(
        "printf '{TRIGGERS}\\n' | while read c; do echo $c > /proc/{}/trigger; done",
        testbed::NAME
    );
    ["sh".to_owned(), "-c".to_owned(), script]
}

/// Runs `profiler run` on the module under that load, and reads its results.
fn run(line: &str) -> (Ended, Option<Recording>) {
    let folder = folder();
    let file = folder.path().join("result.json");
    let mut command =
        profiler(&format!("run --module {} {line} --json {}", testbed::NAME, file.display()));
    let ended = Ended::of(command.arg("--").args(triggers()));
    let profile = file.exists().then(|| saved(file, &ended.stdout));
    (ended, profile)
}

#[test]
#[ignore = "VM 6.1: of kernels with BTF of modules, its trampolines alone take no more than six arguments"]
fn a_glob_measures_every_function_that_runs() {
    testbed::load();
    let before = Counters::calls();
    let (ended, profile) = run("--handler testbed_*");
    let after = Counters::calls();
    ended.assert_code(exit::OK);
    let profile = profile.unwrap();

    let exact = [
        ("testbed_twin#1", 25),
        ("testbed_twin#2", 50),
        ("testbed_many", 30),
        ("testbed_trivial_00", 5),
        ("testbed_trivial_49", 5),
        ("testbed_recurse", 4),
    ];
    for (name, calls) in exact {
        let found = handler(&profile, name);
        assert_eq!(found.count, calls, "{name}");
        assert_whole(found);
        assert!(ended.stdout.contains(&format!("\n{name} ")), "{name} has no row: {ended:?}");
    }
    // Other handlers with calls have a row, too.
    for found in &profile.handlers {
        let name = match found.name.as_str() {
            "testbed_twin#1" => "testbed_twin_first",
            "testbed_twin#2" => "testbed_twin_second",
            name => name,
        };
        if after.has(name) && name != "testbed_empty" {
            let calls = after.of(name) - before.of(name);
            assert!(found.count <= calls, "{name}: {} of {calls}", found.count);
        }
        let row = ended.stdout.lines().any(|line| line.starts_with(&format!("{} ", found.name)));
        assert_eq!(row, found.count > 0 || !found.is_idle(), "{name}: {found:?}");
    }
    assert_eq!(handler(&profile, "testbed_twin#1").backend, Some(Backend::FunctionGraph));
    assert_eq!(handler(&profile, "testbed_trivial_00").backend, Some(Backend::Fentry));
    let many = handler(&profile, "testbed_many");
    assert_eq!(many.backend, Some(Backend::FunctionGraph));
    let other = profile.warnings.iter().find(|warning| warning.code == "other-backend").unwrap();
    assert!(other.text.contains("ENOTSUPP") && !other.text.contains("Unknown"), "{other:?}");
    assert_eq!(other.handlers, ["testbed_many"]);

    // One line for all handlers without a call, and one for each reason.
    let lines = |start: &str| ended.stdout.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(lines("no hit: "), 1, "{ended:?}");
    let reasons: BTreeMap<&str, usize> =
        profile.left_out.iter().fold(BTreeMap::new(), |mut all, left| {
            *all.entry(left.reason.as_str()).or_default() += 1;
            all
        });
    assert_eq!(lines("left out: "), reasons.len(), "{ended:?}");
    let notrace = profile.left_out.iter().find(|left| left.name == "testbed_notrace").unwrap();
    assert!(notrace.reason.contains("notrace"), "{notrace:?}");
}

#[test]
#[ignore = "VM 6.1: of kernels with BTF of modules, its trampolines alone take no more than six arguments"]
fn what_was_named_and_cannot_be_measured_as_asked_is_an_error() {
    testbed::load();
    let (ended, profile) = run("--handler testbed_many --backend fentry");
    ended.assert_code(exit::CANNOT_MEASURE).assert_error(&["testbed_many", "ENOTSUPP"]);
    assert!(profile.is_none());
    let (ended, profile) = run("--handler testbed_many");
    ended.assert_code(exit::OK);
    let profile = profile.unwrap();
    assert_eq!(handler(&profile, "testbed_many").count, 30);
    assert_eq!(profile.warnings[0].code, "other-backend", "{:?}", profile.warnings);

    // With one backend only, functions that it cannot reach are left out.
    let (ended, profile) = run(
        "--handler testbed_m[ae]* --handler testbed_tw* --handler testbed_trivial_00* --backend fentry",
    );
    ended.assert_code(exit::OK);
    let profile = profile.unwrap();
    let left: Vec<&str> = profile.left_out.iter().map(|left| left.name.as_str()).collect();
    assert_eq!(left, ["testbed_many", "testbed_twin#1", "testbed_twin#2"]);
    assert_eq!(handler(&profile, "testbed_trivial_00").count, 5);
    let (ended, _) = run("--handler testbed_m[a]* --backend fentry");
    ended.assert_code(exit::CANNOT_MEASURE).assert_error(&["none of the 1", "ENOTSUPP"]);
}
