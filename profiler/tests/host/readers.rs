//! Exported files read by other implementations.

use std::path::Path;
use std::process::Command;

use profiler_base::stats::nearest_rank;
use profiler_export::{Format, Unit};
use profiler_recording::{Bucket, HandlerRecording, Series};
use serde_json::Value;

use crate::common::{handler, measure, sample};

/// The percentiles that `read.py` asks for.
const PERCENTILES: [f64; 11] = [0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// What the other implementation finds in a file of `series`.
fn read(format: Format, series: &Series) -> Value {
    parsed(format, &format.render(series, Unit::Auto, None))
}

/// What the parser of a format makes of this.
fn parsed(format: Format, bytes: &[u8]) -> Value {
    let python = std::env::var_os("PROFILER_READERS_PYTHON").expect(
        "PROFILER_READERS_PYTHON names no Python with hdrhistogram: `cargo xtask test` makes \
         one and runs this",
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("export");
    std::fs::write(&file, bytes).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host/read.py");
    let output =
        Command::new(python).arg(script).arg(format.to_string()).arg(&file).output().unwrap();
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
    let lines = read(Format::Hlog, &series);
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
