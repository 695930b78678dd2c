//! Exported files read by other implementations.

use std::path::Path;
use std::process::Command;

use profiler::export::{Format, Look};
use profiler::recording::{Bucket, HandlerRecording, Recording, Series};
use profiler::stats::nearest_rank;
use serde_json::Value;

use crate::common::{handler, measure, sample};
use crate::serve_prometheus::run as promtool;

/// The percentiles that `read.py` asks for.
const PERCENTILES: [f64; 11] = [0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// What the other implementation finds in a file of `runs`.
fn read(format: Format, runs: &[Recording]) -> Value {
    parsed(format, &format.render(runs, &Look::default()).unwrap())
}

/// What the parser of a format makes of this.
fn parsed(format: Format, bytes: &[u8]) -> Value {
    let python = std::env::var_os("PROFILER_READERS_PYTHON").expect(
        "PROFILER_READERS_PYTHON names no Python with hdrhistogram and prometheus_client: `cargo xtask test` makes \
         one and runs this",
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("export");
    std::fs::write(&file, bytes).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host/read.py");
    let output = Command::new(python).arg(script).arg(format.name()).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs with every awkward kind of handler: idle, one call, long tails, beyond the range, zeros.
fn series() -> Series {
    let mut first = sample();
    let spread: Vec<u64> = (0..36).flat_map(|e| [(1_u64 << e) - 1, 1 << e, 3 << e >> 1]).collect();
    first.handlers.push(handler(&measure("spread_handler", &spread)));
    first.handlers.push(handler(&measure("one_call", &[123_456_789])));
    first.handlers.push(handler(&measure("beyond", &[0, 0, 5, 90_000_000_000])));
    first.handlers.push(handler(&measure("a,b \"c\" \\d", &[7])));
    let mut second = sample();
    second.started = "2026-11-21T12:01:00.25Z".parse().unwrap();
    Series::new("", vec![first, second])
}

#[test]
#[ignore = "needs a Python with other implementations of the formats: `cargo xtask test` has one"]
fn an_interval_log_has_the_same_quantiles_in_python() {
    let series = series();
    let lines = read(Format::Hlog, &series.runs);
    let expected: Vec<_> =
        series.runs.iter().flat_map(|run| run.handlers.iter().map(move |h| (run, h))).collect();
    let lines = lines.as_array().unwrap();
    assert_eq!(lines.len(), expected.len());
    let mut same = 0;
    for (line, (run, handler)) in lines.iter().zip(expected) {
        let tag = handler.name.replace([',', ' '], "_");
        assert_eq!(line["tag"], tag);
        let start = run.started.as_millisecond() as f64;
        assert!((line["start_ms"].as_f64().unwrap() - start).abs() < 1.0, "{line}");
        let end = start + run.window_ns as f64 / 1e6;
        assert!((line["end_ms"].as_f64().unwrap() - end).abs() < 1.0, "{line}");
        assert_eq!(line["count"], handler.count, "{tag}");
        assert_eq!(line["digits"], run.histogram.precision_digits);
        if handler.count == 0 {
            continue;
        }
        for (value, percent) in line["values"].as_array().unwrap().iter().zip(PERCENTILES) {
            // That implementation takes the rank next to the share, up or down; ours is the
            // smallest that is no less. Where these are one, so must the values be.
            let share = percent / 100.0 * handler.count as f64;
            let theirs = ((share + 0.5) as u64).max(1);
            let ours = nearest_rank(handler.count, percent / 100.0).unwrap();
            let bucket = at_rank(handler, theirs);
            // 0 % is the least that the shortest call may have taken; all else is the most.
            let expected = if percent == 0.0 { bucket.from_ns } else { bucket.to_ns };
            assert_eq!(*value, expected, "{tag} {percent}");
            if theirs == ours {
                let histogram = handler.histogram.decode(&run.histogram).unwrap();
                assert_eq!(*value, histogram.value_at_quantile(percent / 100.0), "{tag} {percent}");
                same += 1;
            }
        }
    }
    assert!(same > 70, "{same} quantiles were compared");
}

/// The bucket that holds this rank, from 1.
fn at_rank(handler: &HandlerRecording, rank: u64) -> Bucket {
    let mut seen = 0;
    let bucket = handler.histogram.buckets.iter().find(|bucket| {
        seen += bucket.count;
        seen >= rank
    });
    *bucket.unwrap()
}

#[test]
#[ignore = "needs a Python with other implementations of the formats: `cargo xtask test` has one"]
fn openmetrics_passes_the_parser_of_prometheus() {
    let series = series();
    let families = read(Format::OpenMetrics, &series.runs);
    let family = |name: &str| {
        families.as_array().unwrap().iter().find(|family| family["name"] == name).expect(name)
    };
    let durations = family("profiler_handler_duration_seconds");
    assert_eq!((&durations["type"], &durations["unit"]), (&"histogram".into(), &"seconds".into()));
    for family in families.as_array().unwrap() {
        let (name, kind) = (family["name"].as_str().unwrap(), family["type"].as_str().unwrap());
        let kinds = ["info", "gauge", "counter", "histogram", "summary"];
        assert!(kinds.contains(&kind), "{name}: {kind}");
        let unit = family["unit"].as_str().unwrap();
        assert!(unit.is_empty() || name.ends_with(&format!("_{unit}")), "{name}: {unit}");
    }
    for (number, run) in series.runs.iter().enumerate() {
        for handler in &run.handlers {
            let of = |family: &Value, name: &str, kind: &[(&str, &str)]| -> Vec<f64> {
                let samples = family["samples"].as_array().unwrap().iter();
                let wanted = samples.filter(|sample| {
                    let labels = &sample[1];
                    sample[0] == name
                        && labels["handler"] == handler.name
                        && labels["run"].as_str() == Some(&(number + 1).to_string())
                        && kind.iter().all(|(key, value)| labels[*key] == *value)
                });
                wanted.map(|sample| sample[2].as_f64().unwrap()).collect()
            };
            let name = "profiler_handler_duration_seconds";
            assert_eq!(of(durations, &format!("{name}_count"), &[]), [handler.count as f64]);
            assert_eq!(of(durations, &format!("{name}_sum"), &[]), [handler.sum_ns as f64 / 1e9]);
            let last = of(durations, &format!("{name}_bucket"), &[("le", "+Inf")]);
            assert_eq!(last, [handler.count as f64]);
            let name = "profiler_handler_duration_quantile_seconds";
            let p99 = of(family(name), name, &[("quantile", "0.99")]);
            let expected: Vec<f64> =
                handler.quantile_ns(0.99).map(|ns| ns as f64 / 1e9).into_iter().collect();
            assert_eq!(p99, expected, "{}", handler.name);
            let losses = family("profiler_handler_losses");
            let lost = of(losses, "profiler_handler_losses_total", &[("kind", "lost")]);
            assert_eq!(lost, [handler.losses.lost as f64]);
        }
    }
}

/// The reader of node_exporter's textfile collector, and its linter.
#[test]
#[ignore = "needs Prometheus: `cargo xtask test` has it"]
fn promtool_has_nothing_to_say_of_an_export() {
    let bytes = Format::Prometheus.render(&series().runs, &Look::default());
    let checked = promtool(&["check", "metrics"], &bytes.unwrap());
    let is_silent = checked.stdout.is_empty() && checked.stderr.is_empty();
    assert!(checked.status.success() && is_silent, "{checked:?}");
}

#[test]
#[ignore = "needs Prometheus: `cargo xtask test` has it"]
fn prometheus_imports_openmetrics_at_the_time_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let series = series();
    let bytes = Format::OpenMetrics.render(&series.runs, &Look::default());
    std::fs::write(path("run.om"), bytes.unwrap()).unwrap();
    let blocks = ["tsdb", "create-blocks-from", "openmetrics", &path("run.om"), &path("data")];
    let imported = promtool(&blocks, b"");
    assert!(imported.status.success(), "{imported:?}");
    // Without one it takes the folder for no database.
    std::fs::create_dir(path("data/wal")).unwrap();
    let dumped = promtool(&["tsdb", "dump", &path("data")], b"");
    let text = String::from_utf8(dumped.stdout).unwrap();
    let run = &series.runs[0];
    let end = run.started.as_millisecond() + i64::try_from(run.window_ns / 1_000_000).unwrap();
    let of_first = |line: &&str| line.contains("profiler_run_info") && line.contains("run=\"1\"");
    let line = text.lines().find(of_first).expect("it is there");
    assert!(line.ends_with(&format!("1 {end}")), "{line}");
}

/// A parser that takes everything would show nothing.
#[test]
#[ignore = "needs a Python with other implementations of the formats: `cargo xtask test` has one"]
fn the_parser_of_prometheus_refuses_what_is_wrong() {
    let text = Format::OpenMetrics.render(&series().runs, &Look::default()).unwrap();
    let text = String::from_utf8(text).unwrap();
    // More calls up to the first bound than up to the next.
    let bucket = text.lines().find(|line| line.contains("_bucket{")).unwrap();
    let more = bucket.replacen("} ", "} 9", 1);
    let wrong = text.replacen(bucket, &more, 1);
    let refused = std::panic::catch_unwind(|| parsed(Format::OpenMetrics, wrong.as_bytes()));
    let message = refused.expect_err("buckets that do not add up are refused");
    let message = message.downcast_ref::<String>().expect("a message");
    assert!(message.contains("ValueError"), "{message}");
}
