//! Runs that are repeated, kept apart, and compared.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use profiler_base::error::exit;
use profiler_recording::Series;

use crate::cli::{Ended, Started, assert_whole, eventually, folder, handler, profiler};
use crate::common::assert_valid_series;
use crate::ends::Left;
use crate::testbed;
use crate::window::{assert_completed, expected, own_calls};

const ENTRY: &str = "connect_syscall_entry_handler";

/// The series in a file, which conforms to the schema; its report is the table of the runs.
fn saved(file: &PathBuf, table: &str) -> Series {
    let bytes = std::fs::read(file).unwrap();
    assert_valid_series(&serde_json::from_slice(&bytes).unwrap());
    let report = Ended::of(profiler("report").arg(file));
    report.assert_code(exit::OK);
    assert_eq!(report.stdout, table, "the table of the file is not the table of the runs");
    Series::read(file).unwrap()
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn repeated_runs_are_kept_apart() {
    testbed::load();
    let folder = folder();
    let file = folder.path().join("series.json");
    let line = format!(
        "run --module hids_testbed --handler {ENTRY} --builtin connect --operations 100 --repeat 3 -o"
    );
    let ended = Ended::of(profiler(&line).arg(&file));
    ended.assert_code(exit::OK);
    let series = saved(&file, &ended.stdout);
    assert_eq!(series.runs.len(), 3);
    for run in &series.runs {
        assert_completed(&run.loads);
        let measured = handler(run, ENTRY);
        // It has no call of another run.
        assert_eq!(measured.count, expected(&own_calls(&run.loads), ENTRY));
        assert_whole(measured);
    }
    let mut means: Vec<f64> =
        series.runs.iter().map(|run| handler(run, ENTRY).mean_ns().unwrap()).collect();
    means.sort_by(f64::total_cmp);
    let spread = format!("{:.2}%", (means[2] - means[0]) / means[1] * 100.0);
    let row = ended.stdout.lines().find(|line| line.starts_with(&format!("{ENTRY} ")));
    let cells: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
    assert_eq!(cells[1], "3", "runs: {}", ended.stdout);
    assert_eq!(cells[4], spread, "{}", ended.stdout);
    Left::assert_nothing();
    let second = Ended::of(profiler("report --run 2").arg(&file));
    second.assert_code(exit::OK);
    assert!(second.stdout.contains("carried in"), "the whole table of one run: {second:?}");
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn repetitions_that_are_stopped_keep_what_was_measured() {
    testbed::load();
    // Of one run `ends::` has every signal.
    let (signal, code) = (Signal::SIGTERM, exit::TERMINATED);
    let line = format!(
        "--module hids_testbed --handler {ENTRY} --builtin connect --operations 200 --repeat 500 \
         -o {{}}/result.json"
    );
    let mut run = Started::run(&line, &[]);
    eventually("the third run begins", || run.read("stderr").contains("run 3 of 500"));
    run.signal(signal);
    let ended = run.end();
    ended.assert_code(code).assert_error(&[signal.as_str()]);
    let series = saved(&run.path("result.json"), &ended.stdout);
    assert!((2..500).contains(&series.runs.len()), "{}", series.runs.len());
    for run in &series.runs {
        assert!(!run.interrupted, "a run that was cut short is no repetition");
        assert!(handler(run, ENTRY).count >= 200);
    }
    Left::assert_nothing();
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn parts_are_repeated_in_turns() {
    testbed::load();
    let folder = folder();
    let file = folder.path().join("result.json");
    let text = "title = \"two\"\nmodule = [\"hids_testbed\"]\nnotes = \"two\"\nparts = [\"connect\", \"bind\"]\n";
    let profile = folder.path().join("two.toml");
    std::fs::write(&profile, text).unwrap();
    let line =
        format!("run --profile {} --builtin --operations 1000 --repeat 2 -o", profile.display());
    let ended = Ended::of(profiler(&line).arg(&file));
    ended.assert_code(exit::OK);
    let series = saved(&file, &ended.stdout);
    let part = |at: usize| series.runs[at].place.as_ref().and_then(|place| place.part.as_deref());
    let parts: Vec<_> = (0..series.runs.len()).map(part).collect();
    assert_eq!(parts, ["connect", "bind", "connect", "bind"].map(Some));
    for name in [ENTRY, "bind_handler"] {
        let row = ended.stdout.lines().find(|line| line.starts_with(&format!("{name} ")));
        let runs = row.unwrap_or_default().split_whitespace().nth(1);
        assert_eq!(runs, Some("2"), "{}", ended.stdout);
    }
}
