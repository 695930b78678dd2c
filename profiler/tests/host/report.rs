//! From a recording to a file and back to the table, with files that are anything but recordings.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::sys::stat::Mode;
use profiler::cmd::report::ReportArgs;
use profiler::cmd::report::run;
use profiler_base::atomic_file::OutputFile;
use profiler_base::error::Failure;
use profiler_export::{self as export, Unit};
use profiler_load::BuiltinKind;
use profiler_recording::call_tree::{CallTree, TreeFunction, TreeNode};
use profiler_recording::loads::{CpuTime, OperationErrors, TestRuns};
use profiler_recording::measure::Losses;
use profiler_recording::{
    DriverCost, LoadProfileUsed, MAX_FILE_BYTES, Meter, OperationPercentile, Percentile, Recording,
    Series, SeriesPosition,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::{LAYOUT, assert_valid, handler, measure, names, sample, validator};

fn table(recording: &Recording, unit: Unit) -> String {
    export::table(std::slice::from_ref(recording), unit, None)
}

/// The whole file as tables.
fn arguments(file: &Path, unit: Unit) -> ReportArgs {
    ReportArgs {
        file: file.to_owned(),
        format: None,
        output: None,
        run: None,
        handlers: Vec::new(),
        unit,
    }
}

fn json_of(recording: &Recording) -> Value {
    serde_json::from_slice(&recording.to_json()).unwrap()
}

fn read(bytes: &[u8]) -> Result<Recording, Failure> {
    Recording::parse(bytes, Path::new("run.json"))
}

/// The message for a file that must be refused.
fn refused(bytes: &[u8]) -> String {
    match read(bytes) {
        Ok(_) => "LET THROUGH".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// The message for `sample()` with one value replaced.
fn refusal(pointer: &str, value: Value) -> String {
    let mut json = json_of(&sample());
    *json.pointer_mut(pointer).expect("the place exists") = value;
    refused(json.to_string().as_bytes())
}

#[test]
fn table_of_a_run() {
    insta::assert_snapshot!(table(&sample(), Unit::Auto));
}

#[test]
fn an_extension_of_no_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (file, output) = (folder.path().join("run.json"), folder.path().join("run.xyz"));
    sample().write(&file).unwrap();
    let with = |output: &Path, format| {
        let output = Some(output.to_owned());
        let args = ReportArgs { output, format, ..arguments(&file, Unit::Auto) };
        run(&args, None, &mut Vec::new())
    };
    let error = with(&output, None).unwrap_err();
    assert_eq!(error.code, profiler_base::error::exit::USAGE);
    assert!(error.to_string().contains("run.xyz is no format's: add --format"), "{error}");
    assert!(!output.exists());
    with(&output, Some(profiler_export::Format::Csv)).unwrap();
    with(&folder.path().join("run"), None).unwrap();
}

#[test]
fn table_in_each_unit() {
    for unit in [Unit::Ns, Unit::Us, Unit::Ms] {
        insta::assert_snapshot!(format!("table_{unit}"), table(&sample(), unit));
    }
}

#[test]
fn table_with_every_kind_of_loss() {
    let mut recording = sample();
    let mut long = measure("execve_handler", &[1_000, 2_000, 90_000_000_000]);
    long.losses.missed = 7;
    long.losses.unpaired_exits = 5;
    let mut skipped = measure("bind_handler", &[]);
    skipped.losses.missed = 41;
    let mut stuck = measure("ptrace_pre_handler", &[]);
    stuck.losses = Losses { entries: 1, in_flight: 1, ..Losses::default() };
    let mut wrong = measure("bind_entry_handler", &[5; 200]);
    wrong.losses.entries += 1;
    wrong.target.module = None;
    recording.handlers = [long, skipped, stuck, wrong].iter().map(handler).collect();
    recording.warnings.clear();
    recording.interrupted = true;
    recording.warn();
    assert_eq!(recording.check(), Ok(()));
    insta::assert_snapshot!(table(&recording, Unit::Auto));
}

#[test]
fn losses_that_few_runs_have_show_where_there_are_some() {
    let mut recording = sample();
    let usual = table(&recording, Unit::Auto);
    assert!(!usual.contains("doubtful") && !usual.contains("backwards"), "{usual}");
    let mut odd = measure("execve_handler", &[1_000; 200]);
    odd.losses.entries += 5;
    odd.losses.exits += 5;
    (odd.losses.doubtful, odd.losses.backwards) = (3, 2);
    assert_eq!(odd.losses.unmeasured(), 5);
    recording.handlers =
        [odd, measure("bind_handler", &[1_000; 200])].iter().map(handler).collect();
    recording.warnings.clear();
    recording.warn();
    assert_eq!(recording.check(), Ok(()));
    let codes: Vec<&str> = recording.warnings.iter().map(|warning| warning.code.as_str()).collect();
    assert_eq!(codes, ["doubtful", "backwards"]);
    let text = table(&recording, Unit::Auto);
    let words = |start: &str| -> Vec<&str> {
        let line = text.lines().rfind(|line| line.starts_with(start)).unwrap();
        line.split_whitespace().rev().take(3).collect()
    };
    assert_eq!(words("handler")[..2], ["backwards", "doubtful"]);
    assert_eq!(words("execve_handler")[..2], ["2", "3"]);
    assert_eq!(words("bind_handler")[..2], ["0", "0"]);
    let json = json_of(&recording);
    assert_eq!(json["handlers"][0]["losses"]["doubtful"], 3);
    assert_eq!(json["handlers"][1]["losses"].get("doubtful"), None);
}

#[test]
fn a_narrow_terminal_wraps_names_only() {
    insta::assert_snapshot!(export::table(&[sample()], Unit::Us, Some(80)));
}

#[test]
fn no_quantile_is_above_the_longest_call() {
    let handler = handler(&measure("a", &[1_000_001, 1_000_001]));
    assert!(handler.histogram.buckets[0].to_ns > 1_000_001);
    for quantile in [0.0, 0.5, 0.99, 1.0] {
        assert_eq!(handler.quantile_ns(quantile), Some(1_000_001));
    }
}

#[test]
fn a_run_and_its_file_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    let recording = sample();
    recording.write(&path).unwrap();
    for unit in [Unit::Auto, Unit::Ns, Unit::Us, Unit::Ms] {
        let printed = table(&recording, unit).into_bytes();
        let mut later = Vec::new();
        run(&arguments(&path, unit), None, &mut later).unwrap();
        assert_eq!(printed, later);
    }
    assert_eq!(Recording::read(&path).unwrap(), recording);
}

fn series() -> Series {
    let place = |boot, order| Some(SeriesPosition { boot, order, part: None });
    let at = |boot, order| Recording { place: place(boot, order), ..sample() };
    Series::new("baseline", vec![at(0, 0), at(0, 3), at(1, 1)])
}

#[test]
fn a_series_keeps_its_runs_apart() {
    let series = series();
    let bytes = series.to_json();
    assert_eq!(Series::parse(&bytes, Path::new("s.json")).unwrap(), series);
    crate::common::assert_valid_series(&serde_json::from_slice(&bytes).unwrap());

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.json");
    series.write(&path).unwrap();
    let mut text = Vec::new();
    run(&arguments(&path, Unit::Auto), None, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("run 2      10 s, after 1 s of warm-up, boot 0, order 3; "), "{text}");
    let mut third = Vec::new();
    let third_run = ReportArgs { run: Some(3), ..arguments(&path, Unit::Auto) };
    run(&third_run, None, &mut third).unwrap();
    assert_eq!(String::from_utf8(third).unwrap(), table(&series.runs[2], Unit::Auto));
}

#[test]
fn table_of_repeated_runs() {
    // Averages of 200, 210 and 220 ns; a tail that only one run has; and one that was never called.
    let run = |number: u64| {
        let base = 200 + 10 * number;
        let mut calls = vec![base; 99];
        calls.push(base + 500 * number);
        let mut recording = sample();
        let mut busy = measure("bind_handler", &calls[..99 - number as usize]);
        busy.losses.entries += number;
        busy.losses.lost = number;
        recording.handlers = vec![
            handler(&busy),
            handler(&measure("connect_handler", &calls)),
            handler(&measure("idle", &[])),
        ];
        recording.warnings.clear();
        recording.warn();
        recording
    };
    let series = Series::new("", (0..3).map(run).collect());
    series.check().unwrap();
    insta::assert_snapshot!(export::table(&series.runs, Unit::Auto, None));
}

#[test]
fn a_profile_is_a_series_of_one_run() {
    let series = Series::parse(&sample().to_json(), Path::new("run.json")).unwrap();
    assert_eq!(series.runs, [sample()]);
}

#[test]
fn a_series_that_contradicts_itself_is_refused() {
    let refusal = |change: &dyn Fn(&mut Series)| {
        let mut series = series();
        change(&mut series);
        Series::parse(&series.to_json(), Path::new("s.json")).unwrap_err().to_string()
    };
    let text = refusal(&|series| series.runs.clear());
    assert!(text.contains("runs: is empty"), "{text}");
    let text = refusal(&|series| series.runs[2].place = series.runs[0].place.clone());
    assert!(text.contains("run 2: boot 0, order 0 is the place of an earlier run"), "{text}");
    // Each part has such a run.
    let mut parts = series();
    let place = parts.runs[0].place.clone().unwrap();
    parts.runs[2].place = Some(SeriesPosition { part: Some("bind".to_owned()), ..place });
    parts.check().unwrap();
    let text = refusal(&|series| series.runs[1].handlers[0].count += 1);
    assert!(text.contains("run 1, handler `"), "{text}");
    let text = refusal(&|series| series.runs[1].meter = Meter::Exact);
    let units = "run 1: its figures are instructions, and those of run 0 are nanoseconds";
    assert!(text.contains(units), "{text}");
    let text = refusal(&|series| series.version = 7);
    assert!(text.contains("version 7, and this program reads up to version 1"), "{text}");
    let text = read(&series().to_json()).unwrap_err().to_string();
    assert!(text.contains("holds several runs, and one is wanted"), "{text}");
}

#[test]
fn text_from_a_file_cannot_steer_the_terminal() {
    let mut recording = sample();
    recording.handlers[0].name = "evil\u{1b}[2J\u{202e}".to_owned();
    recording.warnings[0].text = "a\u{1b}]0;title\u{7}".to_owned();
    recording.host.cpu_model = Some("x\ny".to_owned());
    let text = table(&recording, Unit::Auto);
    assert!(!text.contains(|c: char| c != '\n' && c.is_control() || c == '\u{202e}'), "{text}");
    assert!(text.contains("x\u{fffd}y"));
}

#[test]
fn the_schema_describes_what_is_written() {
    assert_valid(&json_of(&sample()));
    let mut bare = sample();
    bare.modules.clear();
    bare.loads.clear();
    bare.host.hypervisor = None;
    assert_valid(&json_of(&bare));
}

#[test]
fn the_schema_refuses_what_is_wrong() {
    let schema = validator();
    for (pointer, value) in [
        ("/schema", json!("other/schema")),
        ("/version", json!(2)),
        ("/started", json!("yesterday")),
        ("/clock", json!("sundial")),
        ("/window_ns", json!(-1)),
        ("/window_ns", json!(0.5)),
        ("/handlers", json!({})),
        ("/handlers/0/count", json!("many")),
        ("/handlers/0/name", json!("")),
        ("/handlers/0/backend", json!("guess")),
        ("/handlers/0/losses/missed", json!(null)),
        ("/handlers/0/histogram/buckets/0", json!([1, 2])),
        ("/loads/0/outcome/status/state", json!("perhaps")),
        ("/histogram/precision_digits", json!(9)),
        ("/warnings/0", json!("careful")),
    ] {
        let mut json = json_of(&sample());
        *json.pointer_mut(pointer).expect(pointer) = value;
        assert!(!schema.is_valid(&json), "{pointer} is let through");
    }
    let mut json = json_of(&sample());
    json.as_object_mut().unwrap().remove("handlers");
    assert!(!schema.is_valid(&json));
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let message = refused;
    let full = sample().to_json();
    let messages = [
        message(b""),
        message(b"  \n"),
        message(b"handler count\n"),
        message(b"\x1f\x8b\x08\x00rest"),
        message(b"\xff\xfe\x00binary"),
        message(b" 0)   0.5 us    |  bind_entry_handler();\n"),
        message(b"[1, 2]"),
        message(b"null"),
        message(b"{}"),
        message(br#"{"traceEvents": []}"#),
        message(br#"{"schema": "other/thing", "version": 1}"#),
        message(br#"{"schema": "profiler/recording"}"#),
        message(br#"{"schema": "profiler/recording", "version": 2}"#),
        message(br#"{"schema": "profiler/recording", "version": 1}"#),
        message(br#"{"schema": "profiler/recording", "version": 1, "tool": NaN}"#),
        message(&full[..full.len() / 2]),
        message(&[b"[".repeat(100_000), b"]".repeat(100_000)].concat()),
    ];
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn contradictions_are_named() {
    let handler = json_of(&sample())["handlers"][0].clone();
    let messages = [
        refusal("/window_ns", json!(0)),
        refusal("/histogram/highest", json!(u64::MAX)),
        refusal("/histogram/highest", json!(1_000_000)),
        refusal("/histogram/precision_digits", json!(2)),
        refusal("/handlers/0/count", json!(9_999)),
        refusal("/handlers/0/sum", json!(u64::MAX)),
        refusal("/handlers/0/sum", json!(10_000 * 60)),
        refusal("/handlers/0/min", json!(61)),
        refusal("/handlers/0/min", json!(null)),
        refusal("/handlers/0/max", json!(100)),
        refusal("/handlers/0/max", json!(5)),
        refusal("/handlers/0/losses/over_range", json!(1)),
        refusal("/handlers/0/name", json!("")),
        refusal("/handlers/1", handler),
        refusal("/handlers/2/sum", json!(1)),
        refusal("/handlers/0/histogram/buckets/0/2", json!(1)),
        refusal("/handlers/0/histogram/buckets", json!([])),
        refusal("/handlers/0/histogram/buckets/0", json!([61, 60, 250])),
        refusal("/handlers/0/histogram/buckets/0/0", json!(u64::MAX)),
    ];
    assert!(messages.iter().all(|message| message.contains("contradicts itself")));
    insta::assert_snapshot!(messages.join("\n"));
}

fn tests_of_ltp(runs: u64, left_running: u64, hits: usize) -> TestRuns {
    TestRuns {
        name: "x".to_owned(),
        runs,
        stopped: 0,
        results: Vec::new(),
        elapsed_ns: 0,
        min_ns: None,
        max_ns: None,
        hits: Some(vec![0; hits]),
        left_running,
        needs_root: 0,
        output: None,
    }
}

fn operation(with_ns: f64) -> DriverCost {
    DriverCost {
        load: BuiltinKind::Connect,
        operations: 1_000,
        without_ns: 1.0,
        with_ns,
        repeated: None,
        elsewhere: None,
        within: None,
        tail: Vec::new(),
    }
}

fn call_tree(own: u64) -> CallTree {
    let node = TreeNode { parent: None, function: 0, calls: 1, own, iterations: 0, lines: vec![] };
    let functions = vec![TreeFunction { name: "a".to_owned(), module: None }];
    CallTree { functions, places: vec![], nodes: vec![node; 2] }
}

/// Figures whose sums or differences are none: what is made of them would be wrong, or would end the program.
#[test]
fn figures_that_do_not_add_up_are_refused() {
    const MOST: u64 = u64::MAX;
    type Change = fn(&mut Recording);
    let changes: [(&str, Change); 13] = [
        ("load: its CPU times add up to more than 2^64", |r| {
            r.loads[0].outcome.cpu = Some(CpuTime { user_ns: MOST, system_ns: 1 });
        }),
        ("load: its operations add up to more than 2^64", |r| {
            let (kind, first) = ("EIO".to_owned(), String::new());
            r.loads[0].outcome.errors = vec![OperationErrors { kind, count: MOST, first }];
        }),
        ("load: its runs of tests add up to more than 2^64", |r| {
            r.loads[0].outcome.tests = vec![tests_of_ltp(MOST, 0, 3), tests_of_ltp(1, 0, 3)];
        }),
        ("load: its processes that tests left add up to more than 2^64", |r| {
            r.loads[0].outcome.tests = vec![tests_of_ltp(1, MOST, 3), tests_of_ltp(1, 1, 3)];
        }),
        ("load: the hits of a test are not those of the 3 handlers", |r| {
            r.loads[0].outcome.tests = vec![tests_of_ltp(1, 0, 2)];
        }),
        ("load: least_hits are not those of the 3 handlers", |r| {
            let name = "x".to_owned();
            r.load_profile = Some(LoadProfileUsed { name, least_hits: vec![None; 4] });
        }),
        ("call_tree: has more calls or larger sums", |r| r.call_tree = Some(call_tree(1 << 62))),
        ("call_tree: has more calls or larger sums", |r| r.call_tree = Some(call_tree(MOST))),
        ("driver_costs: has 1e300 for an operation", |r| r.driver_costs = vec![operation(1e300)]),
        ("driver_costs: has -1e0 for an operation", |r| r.driver_costs = vec![operation(-1.0)]),
        ("driver_costs: has 1e308 for an operation", |r| {
            r.driver_costs = vec![DriverCost { without_ns: 1e308, ..operation(1.0) }];
        }),
        ("driver_costs: has 1e16 for an operation", |r| {
            r.driver_costs = vec![DriverCost { within: Some(1e16), ..operation(1.0) }];
        }),
        ("driver_costs: has a percentile of 100 %", |r| {
            let at = Percentile { instructions: 1, before: 1, behind: 1 };
            let tail = vec![OperationPercentile { percent: 100, whole: at, within: at }];
            r.driver_costs = vec![DriverCost { tail, ..operation(1.0) }];
        }),
    ];
    for (reason, change) in changes {
        let mut recording = sample();
        change(&mut recording);
        let message = refused(&recording.to_json());
        assert!(message.contains(reason), "{reason}: {message}");
    }
}

#[test]
fn handlers_are_left_out_with_their_hits() {
    let mut recording = sample();
    let least_hits = vec![Some(1), Some(20_000), None];
    recording.load_profile = Some(LoadProfileUsed { name: "x".to_owned(), least_hits });
    let hits = Some(vec![7, 8, 9]);
    recording.loads[0].outcome.tests = vec![TestRuns { hits, ..tests_of_ltp(1, 0, 3) }];
    recording.keep_handlers(|handler| handler.name == "connect_syscall_handler");
    assert_eq!(recording.short_of_hits(), [("connect_syscall_handler", 2_002, 20_000)]);
    assert_eq!(recording.loads[0].outcome.tests[0].hits, Some(vec![8]));
    assert_eq!(recording.check(), Ok(()));
}

#[test]
fn more_histograms_than_anyone_measures_are_refused() {
    let mut recording = sample();
    let empty = handler(&measure("a", &[]));
    recording.handlers = vec![empty; 40_000];
    let message = refused(&recording.to_json());
    assert!(message.contains("40000 histograms"), "{message}");
}

#[test]
fn wrong_types_are_named_with_their_place() {
    for (pointer, value) in [
        ("/window_ns", json!(-1)),
        ("/window_ns", json!(1e30)),
        ("/handlers/0/count", json!(1.5)),
        ("/started", json!("2026-13-45")),
        ("/handlers/0/backend", json!("guess")),
        ("/loads/0/spec/rate_per_s", json!(-3.0)),
    ] {
        let message = refusal(pointer, value);
        assert!(message.contains("damaged recording") && message.contains("line 1"), "{message}");
    }
}

#[test]
fn counts_beyond_a_double_are_exact() {
    let mut measured = measure("connect_syscall_handler", &[]);
    let count = (1_u64 << 53) + 1;
    measured.durations.record_n(1, count).unwrap();
    measured.losses.entries = count;
    let mut recording = sample();
    recording.handlers = vec![handler(&measured)];
    let back = read(&recording.to_json()).unwrap();
    assert_eq!(back, recording);
    assert_eq!(back.handlers[0].count, count);
}

#[test]
fn unknown_fields_of_the_same_version_are_ignored() {
    let mut json = json_of(&sample());
    json["something_new"] = json!({"nested": [1, 2, 3]});
    json["handlers"][0]["something_new"] = json!(true);
    assert_eq!(read(json.to_string().as_bytes()).unwrap(), sample());
}

#[test]
fn places_that_hold_no_file() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path(), Path::new("/dev/zero")] {
        let error = Recording::read(path).unwrap_err().to_string();
        assert!(error.contains(", not a file: name a file"), "{error}");
    }
    let absent = Recording::read(&folder.path().join("absent")).unwrap_err();
    assert!(absent.to_string().contains("No such file"), "{absent}");
    let huge = folder.path().join("huge");
    fs::File::create(&huge).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    let error = Recording::read(&huge).unwrap_err().to_string();
    assert!(error.contains("huge exceeds 256 MiB"), "{error}");
}

#[test]
fn an_unwritable_report_is_an_error_and_a_closed_pipe_is_none() {
    struct Failing(std::io::ErrorKind);
    impl std::io::Write for Failing {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    sample().write(&path).unwrap();
    let write = |kind| run(&arguments(&path, Unit::Auto), None, &mut Failing(kind));
    assert!(write(std::io::ErrorKind::BrokenPipe).is_ok());
    let failure = write(std::io::ErrorKind::StorageFull).unwrap_err();
    assert_eq!(failure.code, 8);
    assert!(failure.message.starts_with("cannot write the report: "), "{failure}");
}

#[test]
fn an_output_is_all_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");

    drop(OutputFile::open(&path).unwrap());
    assert_eq!(names(folder.path()), [""; 0]);

    OutputFile::open(&path).unwrap().commit(b"old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let pending = OutputFile::open(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old");
    drop(pending);
    assert_eq!(fs::read(&path).unwrap(), b"old");

    OutputFile::open(&path).unwrap().commit(b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(names(folder.path()), ["run.json"]);
}

#[test]
fn a_link_stays_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("run.json"), folder.path().join("latest"));
    fs::write(&path, "old").unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    OutputFile::open(&link).unwrap().commit(b"new").unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn an_unwritable_output_is_found_on_opening() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| OutputFile::open(path).expect_err("unwritable").to_string();
    assert!(message(folder.path()).contains("name a file, not a folder"));
    assert!(message(&folder.path().join("no/such/run.json")).contains("create its folder"));
    assert!(message(Path::new("/proc/run.json")).starts_with("cannot write /proc/run.json"));
    let fifo = folder.path().join("fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    assert!(message(&fifo).contains("start what reads"), "{}", message(&fifo));
    OutputFile::open(Path::new("/dev/null")).unwrap().commit(b"gone").unwrap();
    assert!(Path::new("/dev/null").metadata().unwrap().permissions().mode() & 0o200 != 0);
    let full = OutputFile::open(Path::new("/dev/full")).unwrap().commit(b"x").unwrap_err();
    assert!(full.to_string().contains("No space left"), "{full}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_run_survives_its_file(
        runs in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![0..4_000_u64, 0..=LAYOUT.highest_ns, Just(90_000_000_000)], 0..60),
            0..6),
    ) {
        let mut recording = sample();
        recording.handlers = runs
            .iter()
            .enumerate()
            .map(|(at, durations)| handler(&measure(&format!("handler_{at}"), durations)))
            .collect();
        let bytes = recording.to_json();
        let back = read(&bytes).unwrap();
        prop_assert_eq!(&back.to_json(), &bytes);
        prop_assert_eq!(back, recording);
    }

    #[test]
    fn a_damaged_file_never_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        shorten in any::<bool>(),
    ) {
        let mut bytes = small();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if shorten {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(recording) = read(&bytes) {
            let _ = table(&recording, Unit::Auto);
        }
    }

    #[test]
    fn any_number_in_any_place_never_panics(
        place in any::<prop::sample::Index>(),
        number in prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(i64::MAX as u64), any::<u64>()],
    ) {
        let text = String::from_utf8(small()).unwrap();
        let starts: Vec<usize> = text
            .match_indices(|c: char| c.is_ascii_digit())
            .map(|(at, _)| at)
            .filter(|&at| matches!(text.as_bytes()[at - 1], b' ' | b'['))
            .collect();
        let start = starts[place.index(starts.len())];
        let length = text[start..].find(|c: char| !c.is_ascii_digit()).unwrap();
        let text = format!("{}{number}{}", &text[..start], &text[start + length..]);
        if let Ok(recording) = read(text.as_bytes()) {
            let _ = table(&recording, Unit::Auto);
        }
    }
}

/// A recording small enough that a random edit hits something that matters.
fn small() -> Vec<u8> {
    let mut recording = sample();
    let durations: Vec<u64> = (0..20).map(|n| n * n * 100).collect();
    recording.handlers = vec![handler(&measure("bind_handler", &durations))];
    recording.to_json()
}
