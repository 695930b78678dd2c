//! Sums of recordings: exact, whatever the order and grouping, and refused where they would mean
//! nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use profiler_base::error::{Failure, exit};
use profiler_probe::Precision;
use profiler_recording::loads::TestRuns;
use profiler_recording::unlike::What;
use profiler_recording::{
    Backend, Clock, Distribution, HandlerRecording, HistogramLayout, Merge, Recording, Series,
    Snapshot,
};
use proptest::prelude::*;

use crate::common::{LAYOUT, assert_valid, handler, measure, sample};
use crate::program::{profiler, text};

/// The run number `at`, of these handlers with their durations.
fn shard(at: usize, handlers: &[(&str, Vec<u64>)]) -> Recording {
    let mut recording = sample();
    recording.started += jiff::SignedDuration::from_secs(at as i64);
    recording.host.boot_id = Some(format!("boot {}", at % 3));
    recording.handlers =
        handlers.iter().map(|(name, durations)| handler(&measure(name, durations))).collect();
    recording.warnings.clear();
    recording.warn();
    recording
}

fn merge(recordings: &[(Recording, String)]) -> Result<Recording, Failure> {
    let mut merge = Merge::new(&[]);
    for (recording, name) in recordings {
        merge.add(recording.clone(), name)?;
    }
    let merged = merge.finish()?;
    assert_eq!(merged.check(), Ok(()));
    Ok(merged)
}

fn named(recordings: Vec<Recording>) -> Vec<(Recording, String)> {
    let name = |(at, recording)| (recording, format!("shard-{at}.json"));
    recordings.into_iter().enumerate().map(name).collect()
}

#[test]
fn a_sum_is_exact_in_every_figure() {
    let mut first = shard(0, &[("a", vec![1, 5, 1_000_001, 90_000_000_000]), ("b", vec![])]);
    first.handlers[0].losses.lost = 3;
    first.handlers[0].losses.entries += 3;
    let mut second = shard(1, &[("b", vec![7]), ("a", vec![5, 2_000_000])]);
    second.handlers[1].losses.missed = 2;
    second.window_ns = 5_000_000_000;
    second.interrupted = true;
    let (before, after) = (first.clone(), second.clone());
    let merged = merge(&named(vec![first, second])).unwrap();
    assert_valid(&serde_json::from_slice(&merged.to_json()).unwrap());
    let [a, b] = &merged.handlers[..] else { panic!("two handlers") };
    assert_eq!((a.name.as_str(), b.name.as_str()), ("a", "b"));
    assert_eq!((a.count, b.count), (6, 1));
    assert_eq!(a.sum_ns, 1 + 5 + 1_000_001 + 90_000_000_000 + 5 + 2_000_000);
    assert_eq!((a.min_ns, a.max_ns), (Some(1), Some(90_000_000_000)));
    assert_eq!((a.losses.lost, a.losses.missed, a.losses.over_range), (3, 2, 1));
    assert_eq!((merged.window_ns, merged.warmup_ns), (15_000_000_000, 2_000_000_000));
    assert!(merged.interrupted);
    assert_eq!(merged.started, before.started);
    // Facts that differ are not made up.
    assert_eq!(merged.host.boot_id, None);
    assert_eq!(merged.host.kernel_release, before.host.kernel_release);
    assert_eq!(merged.loads.len(), 1);
    assert_eq!(merged.loads[0].outcome.operations, Some(20_000));
    assert_eq!(merged.loads[0].outcome.held_rate_per_s, None);
    // The sources are still distinguishable.
    let sources: Vec<_> =
        merged.sources.iter().map(|s| (s.name.as_str(), s.window_ns, s.calls)).collect();
    let window = before.window_ns;
    assert_eq!(sources, [("shard-0.json", window, 4), ("shard-1.json", after.window_ns, 3)]);
    assert_eq!(merged.sources[1].boot_id, after.host.boot_id);
    // The sum's warnings are of its figures: `b` now has hits.
    let codes: Vec<_> = merged.warnings.iter().map(|warning| warning.code.as_str()).collect();
    assert_eq!(codes, ["interrupted", "missed", "lost", "over-range", "few-calls"]);
}

#[test]
fn warnings_that_only_a_run_could_know_are_kept_once() {
    let mut first = shard(0, &[("a", vec![1])]);
    let shared = profiler_recording::warning::WarningRecord {
        code: "shared".to_owned(),
        handlers: vec!["a".to_owned()],
        text: "another program was there".to_owned(),
    };
    first.warnings.insert(0, shared.clone());
    let mut second = shard(1, &[("a", vec![2])]);
    second.warnings.insert(0, shared.clone());
    let merged = merge(&named(vec![first, second])).unwrap();
    assert_eq!(merged.warnings.iter().filter(|warning| **warning == shared).count(), 1);
    let again = merge(&[(merged.clone(), "x".to_owned())]).unwrap();
    assert_eq!(again, merged);
}

#[test]
fn unlike_profiles_are_refused_by_name() {
    let base = || shard(0, &[("a", vec![1])]);
    let message = |change: &dyn Fn(&mut Recording), allowed: &[What]| {
        let mut other = shard(1, &[("a", vec![1])]);
        change(&mut other);
        let mut merge = Merge::new(allowed);
        merge.add(base(), "x.json").unwrap();
        match merge.add(other, "y.json").and_then(|()| merge.finish()) {
            Ok(recording) => {
                assert_eq!(recording.check(), Ok(()));
                "merged".to_owned()
            }
            Err(error) => error.to_string(),
        }
    };
    type Change = fn(&mut Recording);
    let changes: [(What, Change); 10] = [
        (What::Clock, |p| p.clock = Clock::Virtual),
        (What::Backend, |p| p.handlers[0].backend = Some(Backend::KprobeSession)),
        (What::Precision, |p| {
            p.histogram.precision_digits = 2;
            let mut measured = measure("a", &[]);
            measured.durations = Precision::Two.durations();
            p.handlers = vec![handler(&measured)];
        }),
        (What::Kernel, |p| p.host.kernel_release = Some("6.12".to_owned())),
        (What::Machine, |p| p.host.cpus_online = Some(64)),
        (What::ModuleBuild, |p| p.modules[0].build_id = Some("other".to_owned())),
        (What::Parameters, |p| drop(p.modules[0].parameters.insert("extra".into(), "1".into()))),
        (What::Load, |p| p.loads.clear()),
        (What::Tool, |p| p.tool.version = "0.0.1".to_owned()),
        (What::Parameters, |p| {
            p.snapshot = Some(Snapshot {
                base: String::new(),
                placement: 0,
                counts_sha256: String::new(),
                agent: Some("scanner".to_owned()),
            });
        }),
    ];
    let mut messages = Vec::new();
    for (what, change) in &changes {
        messages.push(message(change, &[]));
        let never = [What::Clock, What::Backend, What::Precision].contains(what);
        let allowed = message(change, &[*what]);
        assert_eq!(allowed == "merged", !never, "{what}: {allowed}");
    }
    insta::assert_snapshot!(messages.join("\n"));
}

/// The program, with 512 MiB of memory.
fn limited(arguments: &[OsString]) -> Output {
    Command::new("sh")
        .args(["-c", "ulimit -v 524288 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_profiler")])
        .args(arguments)
        .output()
        .unwrap()
}

/// A file of some KiB that declares histograms of 31 MiB: without a call, and with one.
#[test]
fn small_files_with_large_histograms_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let layout = HistogramLayout { precision_digits: 5, highest_ns: 86_400_000_000_000, ..LAYOUT };
    let hostile = |at: usize, names: &str, handlers: usize, calls: &[u64]| {
        let mut recording = shard(at, &[("a", calls.to_vec())]);
        recording.histogram = layout;
        let mut histogram = hdrhistogram::Histogram::<u64>::new_with_bounds(
            layout.lowest_ns,
            layout.highest_ns,
            layout.precision_digits,
        )
        .unwrap();
        calls.iter().for_each(|call| histogram.record(*call).unwrap());
        let mut first = recording.handlers.remove(0);
        first.histogram = Distribution::of(&histogram);
        first.losses.over_range = 0;
        recording.handlers = (0..handlers)
            .map(|number| HandlerRecording { name: format!("{names}{number}"), ..first.clone() })
            .collect();
        recording.warn();
        assert_eq!(recording.check(), Ok(()));
        recording.write(&path(&format!("{at}.json"))).unwrap();
    };
    hostile(0, "idle", 200, &[]);
    hostile(1, "called", 10, &[80_000_000_000_000]);
    let files = [path("0.json"), path("1.json"), "-o".into(), path("sum.json")];
    let ended = limited(&[&["merge".into()][..], &files.map(OsString::from)].concat());
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let sum = Recording::read(&path("sum.json")).unwrap();
    assert_eq!((sum.handlers.len(), sum.calls()), (210, 10));
}

/// Numbers that nobody asked for are of 2 bytes each in a file, and would be of 32 in memory.
#[test]
fn what_no_recording_has_takes_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.json");
    let zeros = format!("[{}0]", "0,".repeat(12 << 20));
    let sample = String::from_utf8(sample().to_json()).unwrap();
    let unknown = format!("\"later\": {zeros}, \"name\":");
    for (json, code) in [
        (format!("{{\"schema\": {zeros}}}"), 7),
        (format!("{{\"version\": {zeros}}}"), 7),
        (format!("{{\"later\": {zeros}, {}", &sample[1..]), 0),
        (sample.replacen("\"name\":", &unknown, 1), 0),
    ] {
        std::fs::write(&path, json).unwrap();
        let ended = limited(&["report".into(), path.clone().into()]);
        assert_eq!(ended.status.code(), Some(code), "{}", text(&ended.stderr));
    }
}

/// The tests of LTP of two files: no hits, for the handlers are others, and no sum that wraps.
#[test]
fn tests_of_several_files_add_up() {
    let with_test = |at: usize, name: &str, left_running: u64| {
        let mut recording = shard(at, &[("a", vec![1])]);
        recording.loads[0].outcome.tests = vec![TestRuns {
            name: name.to_owned(),
            runs: 1,
            stopped: 0,
            results: Vec::new(),
            elapsed_ns: 1,
            min_ns: Some(1),
            max_ns: Some(1),
            hits: Some(vec![1]),
            left_running,
            needs_root: 0,
            output: None,
        }];
        assert_eq!(recording.check(), Ok(()));
        recording
    };
    let merged = |recordings: [Recording; 2]| {
        let mut merge = Merge::new(&[What::Tests]);
        for (recording, name) in named(recordings.into()) {
            merge.add(recording, &name).unwrap();
        }
        merge.finish()
    };
    let sum = merged([with_test(0, "x", 1), shard(1, &[("b", vec![1])])]).unwrap();
    assert_eq!((sum.handlers.len(), sum.check()), (2, Ok(())));
    assert_eq!(sum.loads[0].outcome.tests[0].hits, None);
    let sum = merged([with_test(0, "x", u64::MAX), with_test(1, "y", u64::MAX)]);
    let error = sum.unwrap_err().to_string();
    assert!(error.contains("processes that tests left add up to more than 2^64"), "{error}");
}

#[test]
fn a_run_is_counted_once() {
    let recordings = named((0..3).map(|at| shard(at, &[("a", vec![at as u64])])).collect());
    let merged = merge(&recordings[..2]).unwrap();
    let mut again = vec![(merged, "sum.json".to_owned())];
    again.push((recordings[1].0.clone(), "copy.json".to_owned()));
    let error = merge(&again).unwrap_err();
    assert_eq!(
        error.to_string(),
        "copy.json has a run that is in the sum already, as shard-1.json: leave one of them out"
    );
}

#[test]
fn a_sum_that_is_too_large_is_refused() {
    let large = |at: usize, count: u64| {
        let mut measured = measure("a", &[]);
        measured.durations.record_n(1, count).unwrap();
        let mut recording = shard(at, &[]);
        recording.handlers = vec![handler(&measured)];
        recording
    };
    // A count that 64 bits hold and a bucket does not.
    let half = (1 << 63) - 1;
    let error = merge(&named(vec![large(0, half), large(1, half)])).unwrap_err();
    assert_eq!(error.code, exit::BAD_INPUT);
    let text = error.to_string();
    assert!(
        text.contains("shard-0.json and others would not be read: handler `a`: bucket 0 of"),
        "{text}"
    );
    assert!(merge(&named(vec![large(0, half), large(1, half), large(2, 5)])).is_err());
    let mut long = shard(1, &[("a", vec![1])]);
    long.window_ns = u64::MAX - 1;
    let error = merge(&named(vec![shard(0, &[("a", vec![1])]), long])).unwrap_err();
    assert_eq!(error.code, exit::BAD_INPUT);
    assert!(error.to_string().contains("window_ns: a figure is beyond 2^64"), "{error}");
    assert_eq!(merge(&[]).unwrap_err().code, exit::USAGE);
}

fn durations() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(
        prop_oneof![0..4_000_u64, 0..=60_000_000_000_u64, Just(90_000_000_000)],
        0..20,
    )
}

/// A run with some of three handlers, in any order, and an outcome of its load.
fn run() -> impl Strategy<Value = (Vec<(usize, Vec<u64>)>, u64, bool)> {
    let handlers = prop::collection::vec((0..3_usize, durations()), 1..4);
    (handlers, any::<u32>().prop_map(u64::from), any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn order_and_grouping_change_no_byte(
        runs in prop::collection::vec(run(), 2..6),
        order in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let recordings = named(runs.iter().enumerate().map(|(at, (handlers, operations, lossy))| {
            let names = ["a", "b", "c"];
            let mut seen = Vec::new();
            let mut kept = Vec::new();
            for (name, durations) in handlers {
                if !seen.contains(name) {
                    seen.push(*name);
                    kept.push((names[*name], durations.clone()));
                }
            }
            let mut recording = shard(at, &kept);
            recording.loads[0].outcome.operations = lossy.then_some(*operations);
            recording.handlers[0].losses.missed = u64::from(*lossy);
            recording.warnings.clear();
            recording.warn();
            recording
        }).collect());
        let all = merge(&recordings).unwrap();
        let bytes = all.to_json();

        let mut turned = recordings.clone();
        turned.rotate_left(order.index(recordings.len()));
        turned.swap(0, recordings.len() - 1);
        prop_assert!(merge(&turned).unwrap().to_json() == bytes, "another order");

        let (left, right) = recordings.split_at(1 + cut.index(recordings.len() - 1));
        let halves = [(merge(right).unwrap(), "right".to_owned()), (merge(left).unwrap(), "left".to_owned())];
        prop_assert!(merge(&halves).unwrap().to_json() == bytes, "another grouping");

        for name in ["a", "b", "c"] {
            let of = |recording: &Recording| recording.handlers.iter().find(|h| h.name == name).map(|h| h.sum_ns);
            let expected: u64 = recordings.iter().filter_map(|(recording, _)| of(recording)).sum();
            prop_assert_eq!(of(&all).unwrap_or(0), expected);
        }
    }
}

fn write(folder: &Path, name: &str, recording: &Recording) -> PathBuf {
    let path = folder.join(name);
    recording.write(&path).unwrap();
    path
}

#[test]
fn files_and_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |recording: &Recording, name: &str| {
        write(folder.path(), name, recording).to_str().unwrap().to_owned()
    };
    let a = path(&sample(), "a.json");
    let mut later = sample();
    later.started = "2026-11-22T00:00:00Z".parse().unwrap();
    let b = path(&later, "b.json");
    later.host.kernel_release = Some("6.12".to_owned());
    let other = path(&later, "other.json");
    let series = folder.path().join("series.json");
    Series::new("", vec![shard(7, &[("x", vec![1])]), shard(8, &[("x", vec![2])])])
        .write(&series)
        .unwrap();
    let out = folder.path().join("sum.json");
    let out = out.to_str().unwrap();

    let output = profiler(&["merge", &a, &b, series.to_str().unwrap(), "-o", out]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("merged runs: 4, with 24006 calls of 4 handlers"), "{said}");
    let merged = Recording::read(Path::new(out)).unwrap();
    let names: Vec<_> = merged.sources.iter().map(|source| source.name.as_str()).collect();
    assert_eq!(names, ["a.json", "series.json run 1", "series.json run 2", "b.json"]);
    let table = profiler(&["report", out]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(
        table.contains("4 runs: a.json, series.json run 1, series.json run 2, b.json"),
        "{table}"
    );

    let old = std::fs::read(out).unwrap();
    let refused = profiler(&["merge", &a, &other, "-o", out]);
    assert_eq!(refused.status.code(), Some(12), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--allow-different kernel"), "{said}");
    assert!(said.contains(&format!("{a} and {other} cannot be merged")), "{said}");
    assert_eq!(std::fs::read(out).unwrap(), old, "the old file is left");
    let twice = profiler(&["merge", &a, &a, "-o", out]);
    assert_eq!(twice.status.code(), Some(12));
    let said = String::from_utf8_lossy(&twice.stderr).into_owned();
    assert!(
        said.contains(&format!("{a} has a run that is in the sum already, as {a}: ")),
        "{said}"
    );
    assert_eq!(profiler(&["merge", &a, "absent.json", "-o", out]).status.code(), Some(7));
    assert_eq!(profiler(&["merge", &a, &b, "-o", "/dev/full"]).status.code(), Some(8));
    assert_eq!(profiler(&["merge", &a]).status.code(), Some(2));
    let allowed = ["merge", &a, &other, "--allow-different", "kernel", "-q", "-o", "-"];
    let output = profiler(&allowed);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let merged: Recording = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(merged.host.kernel_release.as_deref(), Some("various"));
}
