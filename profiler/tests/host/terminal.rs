//! Standard error and output that nobody reads, that are full, or a terminal that was closed: what was measured is written, and
//! the exit code is that of the table. And what a terminal gets is text, whatever a file says.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use profiler_export::{Format, Unit};
use profiler_load::{LoadStatus, StopReason};
use profiler_recording::Recording;
use tempfile::TempDir;

use crate::common::sample;
use crate::program::{profiler, text, wait_for, wait_measuring};

const LOAD: [&str; 4] = ["run", "--no-probe", "--builtin", "nanosleep"];

/// What becomes of standard error.
#[derive(Debug, Clone, Copy)]
enum Stderr {
    Closed,
    Full,
    /// A pipe without a reader.
    Gone,
    /// As [`Self::Gone`], and standard output is the same pipe.
    BothGone,
    /// A pipe for both, whose reader takes a line and goes, as `head -1`.
    Head,
}

const ALL: [Stderr; 5] =
    [Stderr::Closed, Stderr::Full, Stderr::Gone, Stderr::BothGone, Stderr::Head];

/// The exit code, and standard output where it is not the same pipe.
fn run(args: &[&str], stderr: Stderr) -> (Option<i32>, Option<String>) {
    let program = env!("CARGO_BIN_EXE_profiler");
    let mut command = match stderr {
        Stderr::Closed => {
            let mut command = Command::new("sh");
            command.args(["-c", "exec \"$@\" 2>&-", "sh", program]);
            command
        }
        _ => Command::new(program),
    };
    command.args(args).stdout(Stdio::piped());
    let (reader, writer) = std::io::pipe().unwrap();
    match stderr {
        Stderr::Closed => {}
        Stderr::Full => {
            command.stderr(OpenOptions::new().write(true).open("/dev/full").unwrap());
        }
        Stderr::Gone => {
            command.stderr(writer);
        }
        Stderr::BothGone | Stderr::Head => {
            command.stdout(writer.try_clone().unwrap()).stderr(writer);
        }
    }
    let mut reader = Some(reader).filter(|_| matches!(stderr, Stderr::Head));
    let mut child = command.spawn().unwrap();
    // It holds the pipe's other end.
    drop(command);
    if let Some(reader) = reader.take() {
        BufReader::with_capacity(64, reader).read_line(&mut String::new()).unwrap();
    }
    let mut out = child.stdout.take().map(|mut stdout| {
        let mut out = Vec::new();
        stdout.read_to_end(&mut out).unwrap();
        text(&out)
    });
    out = out.filter(|_| !matches!(stderr, Stderr::BothGone | Stderr::Head));
    (child.wait().unwrap().code(), out)
}

fn data(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn no_command_needs_a_reader_of_its_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (one, series) = (data("run.json"), data("series.json"));
    let (trace, merged, none) = (data("trace_cmd_hundred.txt"), path("merged.json"), path("none"));
    for args in [
        &["report", &one][..],
        &["report", &none],
        &["compare", &one, &series],
        &["compare", &one, &none],
        &["merge", &one, "-o", &merged],
        &["merge", &one, &one, "-o", &merged],
        &["import", "trace-cmd", &trace],
        &["gate", &series, &series],
        &["gate", "--budget", "*:tp99<1ns", "--", &series],
        &["gate", "--budget", "*:tp99<10s", "--", &series],
        &["explain", &one],
        &["doctor", "--module", "no-such-module"],
        &["profiles", "list"],
        &["release", "no-such-module"],
        &["run", "--module", "no-such-module", "-H", "x", "--builtin", "open"],
        &["no-such-command"],
        &["--help"],
    ] {
        let usual = profiler(args);
        for stderr in ALL {
            let (code, out) = run(args, stderr);
            assert_eq!(code, usual.status.code(), "{args:?}, {stderr:?}");
            if let Some(out) = out {
                assert_eq!(out, text(&usual.stdout), "{args:?}, {stderr:?}");
            }
        }
    }
}

#[test]
fn a_run_needs_no_reader_of_its_errors() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("run.json");
    let rest = "--duration 200ms --warmup 10ms --repeat 2 --json";
    let args: Vec<&str> =
        LOAD.into_iter().chain(rest.split(' ')).chain([json.to_str().unwrap()]).collect();
    for stderr in ALL {
        let (code, out) = run(&args, stderr);
        assert_eq!(code, Some(0), "{stderr:?}");
        assert!(out.is_none_or(|out| out.contains("nanosleep")), "{stderr:?}");
        let series = profiler_recording::Series::read(&json).unwrap();
        assert_eq!(series.runs.len(), 2, "{stderr:?}");
        std::fs::remove_file(&json).unwrap();
    }
    // The table goes to standard error, and its loss is none of the recording.
    let args: Vec<&str> = LOAD.into_iter().chain("--operations 10 --json -".split(' ')).collect();
    for stderr in [Stderr::Closed, Stderr::Full, Stderr::Gone] {
        let (code, out) = run(&args, stderr);
        assert_eq!(code, Some(0), "{stderr:?}");
        Recording::parse(out.unwrap().as_bytes(), Path::new("-")).unwrap();
    }
}

#[test]
fn a_reader_may_go_at_any_moment_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..20 {
        let json = folder.path().join(format!("{number}.json"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
        command.args(LOAD).args("--duration 300ms --json".split(' ')).arg(&json);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let moment = Duration::from_millis(fastrand::u64(..400));
        std::thread::sleep(moment);
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(child.wait().unwrap().code(), Some(0), "{moment:?}");
        let recording = Recording::read(&json).unwrap();
        assert!(!recording.interrupted, "{moment:?}");
    }
}

/// For `env`: whoever runs the tests may have the signal ignored.
const HEARS_HANGUP: [&str; 2] = ["--default-signal=HUP", env!("CARGO_BIN_EXE_profiler")];

/// A run that measures, for ten minutes.
fn measuring(mut command: Command) -> (TempDir, PathBuf, Child) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("run.json");
    command.args(LOAD).args(["--duration", "600s", "--json"]).arg(&json);
    let child = command.spawn().unwrap();
    (folder, json, child)
}

fn assert_interrupted(json: &Path) {
    let recording = Recording::read(json).unwrap();
    assert!(recording.interrupted && recording.window_ns < 590_000_000_000);
    assert_eq!(recording.warnings[0].code, "interrupted");
    let by = StopReason::Interrupted;
    assert_eq!(recording.loads[0].outcome.status, LoadStatus::Stopped { by });
}

fn hang_up(child: &Child) {
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGHUP).unwrap();
}

#[test]
fn sighup_ends_a_run_with_its_report() {
    let mut command = Command::new("env");
    command.args(HEARS_HANGUP).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (_folder, json, mut child) = measuring(command);
    let mut said = wait_measuring(child.stderr.take().unwrap());
    hang_up(&child);
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(129), "{rest}");
    assert!(rest.contains("SIGHUP") && text(&output.stdout).contains("nanosleep"), "{rest}");
    assert_interrupted(&json);
}

#[test]
fn a_run_under_nohup_outlives_sighup() {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_profiler")]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (_folder, json, mut child) = measuring(command);
    let mut said = wait_measuring(child.stderr.take().unwrap());
    hang_up(&child);
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it goes on");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    std::io::copy(&mut said, &mut std::io::sink()).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(143));
    assert_interrupted(&json);
}

/// Both ends of a new terminal: the emulator's, and the program's. No other program that starts inherits them.
fn terminal() -> [File; 2] {
    let emulator = OpenOptions::new().read(true).write(true).open("/dev/ptmx").unwrap();
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: neither call takes memory.
    let end = unsafe {
        assert_eq!(libc::unlockpt(emulator.as_raw_fd()), 0);
        libc::ioctl(emulator.as_raw_fd(), libc::TIOCGPTPEER, flags)
    };
    assert!(end >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: it is new, and nobody else's.
    [emulator, unsafe { File::from_raw_fd(end) }]
}

/// The kernel sends SIGHUP, and every write to the terminal fails with EIO from then on.
#[test]
fn a_closed_terminal_ends_a_run_with_its_recording() {
    let [mut emulator, terminal] = terminal();
    let slave = || terminal.try_clone().unwrap();
    // With the terminal as its own.
    let mut command = Command::new("setsid");
    command.args(["--ctty", "env"]).args(HEARS_HANGUP).env("TERM", "dumb");
    command.stdin(slave()).stdout(slave()).stderr(slave());
    let (_folder, json, mut child) = measuring(command);
    drop(terminal);
    let (mut seen, mut bytes) = (String::new(), [0; 4096]);
    while !seen.contains("measuring") {
        let read = emulator.read(&mut bytes).unwrap();
        seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    drop(emulator);
    let mut status = None;
    wait_for("the end of the run", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(129), "{seen}");
    assert_interrupted(&json);
}

/// Standard error of a command that fails: text alone, and no line that a file has made up.
fn refused(code: i32, args: &[&str]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_profiler"));
    // As on a terminal, where errors of the command line are in colour.
    if args.iter().any(|arg| arg.contains('\u{1b}')) {
        program.env("CLICOLOR_FORCE", "1");
    }
    let output = program.args(args).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said:?}");
    let steers = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
    assert!(!said.contains(steers), "{args:?}: {said:?}");
    assert!(!said.lines().any(|line| line.starts_with("forged")), "{said}");
    said
}

const EVIL: &str = "\u{1b}]0;title\u{7}\u{9b}\u{202e}\r\nforged";

#[test]
fn no_error_steers_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let write = |name: &str, change: &dyn Fn(&mut Recording)| {
        let mut recording = sample();
        change(&mut recording);
        recording.write(Path::new(&path(name))).unwrap();
        path(name)
    };
    // A value that no version has, as the parser quotes it.
    let mut json = serde_json::to_value(sample()).unwrap();
    json["clock"] = EVIL.into();
    std::fs::write(path("clock"), json.to_string()).unwrap();
    assert!(refused(7, &["report", &path("clock")]).contains("title"));
    // A part that contradicts another.
    let json = serde_json::to_value(sample()).unwrap().to_string();
    let json = json.replacen("connect_syscall_handler", "EVIL", 1).replacen(
        "\"count\":",
        "\"count\":1",
        1,
    );
    let evil = serde_json::to_string(EVIL).unwrap();
    std::fs::write(path("count"), json.replace("EVIL", evil.trim_matches('"'))).unwrap();
    refused(7, &["report", &path("count")]);
    // Facts of another host.
    let plain = write("plain", &|_| ());
    let kernel = write("kernel", &|recording| {
        recording.host.kernel_version = Some(EVIL.to_owned());
        recording.started += jiff::SignedDuration::from_secs(1);
    });
    let output = path("sum");
    assert!(refused(12, &["merge", &plain, &kernel, "-o", &output]).contains("title"));
    assert!(refused(12, &["compare", &plain, &kernel]).contains("title"));
    // A key of a file of settings.
    let key = EVIL.replace('\r', "\\r").replace('\n', "\\n").replace('\u{1b}', "\\u001b");
    let key = key.replace('\u{7}', "\\u0007").replace('\u{9b}', "\\u009b");
    std::fs::write(path("gate.toml"), format!("\"{key}\" = 1\n")).unwrap();
    assert!(
        refused(7, &["gate", "--config", &path("gate.toml"), &plain, &plain]).contains("title")
    );
    // The name of a file, also where the parser of the command line quotes it.
    let steers = "\u{1b}]0;title\u{7}\u{9b}\u{202e}";
    assert!(refused(7, &["report", &path(steers)]).contains("title"));
    assert!(
        refused(2, &["report", &format!("--no{steers}")]).contains("unexpected argument '--no")
    );
    assert!(refused(2, &["run", "-H", "x", "--builtin", "\u{1b}[2J"]).contains("invalid value"));
}

#[test]
fn no_cell_of_a_csv_file_is_a_formula() {
    let mut recording = sample();
    let name = "=HYPERLINK(\"http://example.org\")";
    recording.handlers[0].name = name.to_owned();
    recording.host.kernel_release = Some("@SUM(1)".to_owned());
    let csv =
        Format::Csv.render(&profiler_recording::Series::new("", vec![recording]), Unit::Auto, None);
    let row = csv::Reader::from_reader(&csv[..]).into_records().next().unwrap().unwrap();
    assert!(row.iter().any(|cell| cell == format!("'{name}")), "{row:?}");
    assert!(row.iter().any(|cell| cell == "'@SUM(1)"), "{row:?}");
    assert!(!row.iter().any(|cell| cell.starts_with(['=', '+', '-', '@'])), "{row:?}");
}

#[test]
fn a_newcomer_is_told_what_to_write() {
    let one = data("run.json");
    let said = refused(2, &["run", "--handler=", "--builtin", "open"]);
    assert!(said.contains("a value is required for '--handler <NAME|GLOB>'"), "{said}");
    let said = refused(2, &["gate", &one, "--", &one, "--junit", "gate.xml"]);
    assert!(said.contains("write --junit before it"), "{said}");
    for args in [&["run", "--help"][..], &["cost", "--help"], &["explain", "--help"]] {
        let help = text(&profiler(args).stdout);
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("values: connect, bind, execve, open,"), "{args:?}: {help}");
    }
    let said = refused(2, &["run", "-H", "x", "--builtin", "conect"]);
    assert!(said.contains("a similar value exists: 'connect'"), "{said}");
}
