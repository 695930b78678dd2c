//! Each format, of runs that are awkward to write down.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use nix::sys::stat::Mode;
use profiler_export::{Format, Unit};
use profiler_recording::{HandlerRecording, Meter, Recording, Series};

use crate::common::{handler, measure, names, sample};
use crate::program::profiler;

fn text(format: Format, recording: &Recording) -> String {
    text_of(format, Series::new("", vec![recording.clone()]))
}

fn text_of(format: Format, series: Series) -> String {
    String::from_utf8(format.render(&series, Unit::Auto, None)).unwrap()
}

/// Two runs, the second a minute later.
fn series() -> Series {
    let first = sample();
    let mut second = sample();
    second.started = "2026-11-21T12:01:00.25Z".parse().unwrap();
    Series::new("baseline", vec![first, second])
}

/// A run whose texts hold what each format treats as its own.
fn hostile() -> Recording {
    let mut recording = sample();
    recording.handlers = [
        measure("a,b \"c\" |d| <e> _f_ \\g\u{1b}[2J", &[1_000, 90_000_000_000]),
        measure("bind_handler", &[]),
    ]
    .iter()
    .map(handler)
    .collect();
    recording.handlers[1].module = Some("other\nmodule".to_owned());
    recording.host.kernel_release = Some("6.1\"\\\n".to_owned());
    recording.warnings.clear();
    recording.warn();
    recording
}

#[test]
fn markdown() {
    insta::assert_snapshot!(text(Format::Markdown, &sample()));
    insta::assert_snapshot!("markdown_hostile", text(Format::Markdown, &hostile()));
}

#[test]
fn csv() {
    insta::assert_snapshot!(text(Format::Csv, &sample()));
    let text = text(Format::Csv, &hostile());
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let heads = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let cell = |row: usize, head: &str| {
        rows[row][heads.iter().position(|found| found == head).unwrap()].to_owned()
    };
    assert_eq!(rows.len(), 2);
    assert_eq!(cell(0, "handler"), "a,b \"c\" |d| <e> _f_ \\g\u{fffd}[2J");
    assert_eq!((cell(0, "over_range"), cell(0, "max_ns")), ("1".into(), "90000000000".into()));
    assert_eq!(
        (cell(1, "count"), cell(1, "p99_ns"), cell(1, "mean_ns")),
        ("0".into(), "".into(), "".into())
    );
}

/// A handler that runs 1,000 instructions in each of ten calls, 600 of them its own, and one of which that is not known.
#[test]
fn own_instructions_are_in_the_formats_of_figures() {
    let mut recording = sample();
    recording.meter = Meter::Exact;
    let outer = handler(&measure("testbed_outer", &[1_000; 10]));
    let outer = HandlerRecording { own_instructions: Some(6_000), repeated: Some(25), ..outer };
    recording.handlers = vec![outer, handler(&measure("bind_handler", &[5; 3]))];
    let csv = text(Format::Csv, &recording);
    let ends: Vec<String> =
        csv.lines().map(|line| line.rsplit(',').take(3).collect::<Vec<_>>().join(",")).collect();
    assert_eq!(ends, ["backwards,doubtful,self_sum_instructions", "0,0,6000", "0,0,"]);
    let markdown = text(Format::Markdown, &recording);
    let rows: Vec<&str> = markdown.lines().filter(|line| line.contains("testbed_outer")).collect();
    assert_eq!(rows[1], "| testbed_outer | 1000.0 | 600.0 | 400.0 | 2.5 |");
    assert!(markdown.contains("| self average, instructions |"), "{markdown}");
    assert_eq!(markdown.matches("| bind_handler |").count(), 2, "durations and books: {markdown}");
}

#[test]
fn csv_of_a_series_has_the_rows_of_each_run() {
    let text = text_of(Format::Csv, series());
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let runs: Vec<String> = reader.records().map(|row| row.unwrap()[0].to_owned()).collect();
    assert_eq!(runs, ["1", "1", "1", "2", "2", "2"]);
}

#[test]
fn percentile_distribution() {
    let mut recording = sample();
    insta::assert_snapshot!(text(Format::Hgrm, &recording));
    // Nothing is above the longest call, though its bucket reaches further.
    recording.handlers = vec![handler(&measure("a", &[1_000_001]))];
    let text = text(Format::Hgrm, &recording);
    assert!(text.contains("1000.001 1.000000000000          1\n"), "{text}");
}

#[test]
fn interval_log_is_read_back() {
    let series = series();
    let bytes = Format::Hlog.render(&series, Unit::Auto, None);
    let mut lines = Vec::new();
    let mut base = None;
    for entry in IntervalLogIterator::new(&bytes) {
        match entry.unwrap() {
            LogEntry::BaseTime(time) => base = Some(time),
            LogEntry::Interval(line) => {
                let packed = STANDARD.decode(line.encoded_histogram()).unwrap();
                let histogram: Histogram<u64> =
                    Deserializer::new().deserialize(&mut packed.as_slice()).unwrap();
                let tag = line.tag().map(|tag| tag.as_str().to_owned());
                lines.push((tag, line.start_timestamp(), line.duration(), histogram));
            }
            LogEntry::StartTime(_) => {}
        }
    }
    assert_eq!(base, Some(Duration::from_millis(1_795_262_400_250)));
    assert_eq!(lines.len(), 6);
    for (at, (tag, start, length, histogram)) in lines.iter().enumerate() {
        let run = &series.runs[at / 3];
        let handler = &run.handlers[at % 3];
        assert_eq!(tag.as_deref(), Some(handler.name.as_str()));
        assert_eq!(*start, Duration::from_secs(60 * (at as u64 / 3)));
        assert_eq!(*length, Duration::from_nanos(run.window_ns));
        assert_eq!(histogram.len(), handler.count);
        assert_eq!(*histogram, handler.histogram.decode(&run.histogram).unwrap());
    }
    let text = String::from_utf8(bytes).unwrap();
    assert!(
        text.contains(
            "#connect_syscall_handler: calls not measured: 2, still running at the end: 1"
        )
    );
    // A tag that held a comma would end there.
    let hostile = self::text(Format::Hlog, &hostile());
    assert!(hostile.contains("Tag=a_b_\"c\"_|d|"), "{hostile}");
}

#[test]
fn report_in_each_format() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    sample().write(&path).unwrap();
    let file = path.to_str().unwrap();
    for &format in Format::ALL {
        let expected = format.render(&Series::new("", vec![sample()]), Unit::Us, None);
        let printed = profiler(&["report", file, "--unit", "us", "--format", &format.to_string()]);
        assert!(printed.status.success(), "{printed:?}");
        assert_eq!(printed.stdout, expected, "{format}");
        let out = folder.path().join(format!("out.{format}"));
        let written =
            profiler(&["report", file, "--unit", "us", "--output", out.to_str().unwrap()]);
        assert!(written.status.success() && written.stdout.is_empty(), "{written:?}");
        assert_eq!(std::fs::read(&out).unwrap(), expected, "{format}");
    }
}

#[test]
fn report_of_one_handler_and_of_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let (run, many) = (folder.path().join("run.json"), folder.path().join("many.json"));
    sample().write(&run).unwrap();
    series().write(&many).unwrap();
    let (run, many) = (run.to_str().unwrap(), many.to_str().unwrap());
    let code = |args: &[&str]| profiler(args).status.code();
    let output = profiler(&["report", run, "--handler", "udp_*", "--format", "csv"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2);
    assert_eq!(code(&["report", run, "--handler", "no_such"]), Some(4));
    assert_eq!(code(&["report", run, "--handler", "[", "--format", "csv"]), Some(2));
    assert_eq!(code(&["report", many, "--run", "3"]), Some(2));
    assert_eq!(code(&["report", many, "--run", "0"]), Some(2));
    let second = profiler(&["report", many, "--run", "2", "--format", "json"]);
    let second: Recording = serde_json::from_slice(&second.stdout).unwrap();
    assert_eq!(second, series().runs[1]);
    assert_eq!(code(&["report", many, "--format", "nonsense"]), Some(2));
}

#[test]
fn report_reads_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = sample().to_json();
    let fifo = folder.path().join("fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let written = bytes.clone();
    let target = fifo.clone();
    let writer = std::thread::spawn(move || std::fs::write(target, written).unwrap());
    let from_fifo = profiler(&["report", fifo.to_str().unwrap()]);
    writer.join().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_profiler"))
        .args(["report", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let from_stdin = child.wait_with_output().unwrap();
    assert!(from_fifo.status.success() && from_stdin.status.success(), "{from_fifo:?}");
    assert_eq!(from_fifo.stdout, from_stdin.stdout);
    assert_eq!(from_fifo.stdout, text(Format::Table, &sample()).into_bytes());
}

#[test]
fn an_output_that_cannot_be_written_leaves_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    sample().write(&path).unwrap();
    let file = path.to_str().unwrap();
    let full = profiler(&["report", file, "--format", "csv", "--output", "/dev/full"]);
    assert_eq!(full.status.code(), Some(8), "{full:?}");
    let nowhere = folder.path().join("no/out.csv");
    let output = profiler(&["report", file, "--output", nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(8));
    // A damaged input is found before an older report is replaced.
    let old = folder.path().join("old.csv");
    std::fs::write(&old, "old").unwrap();
    let damaged = folder.path().join("damaged.json");
    std::fs::write(&damaged, "{").unwrap();
    let output =
        profiler(&["report", damaged.to_str().unwrap(), "--output", old.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(std::fs::read(&old).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["damaged.json", "old.csv", "run.json"]);
}
