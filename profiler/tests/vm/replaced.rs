//! The driver is unloaded, or replaced by another build, while it is measured or between two runs.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use profiler_base::error::exit;
use profiler_recording::{Recording, Series};

use crate::cli::{Ended, Started, assert_whole, eventually, folder, handler, profiler, saved};
use crate::testbed;

const INNER: &str = "testbed_inner";

/// Build id of the loaded testbed.
pub(crate) fn build_id() -> String {
    let facts = profiler_kernel::module::collect(testbed::NAME).unwrap();
    facts.build_id.expect("the testbed is built with one")
}

/// The testbed with another build id, as after a new build.
pub(crate) fn other_build(folder: &Path) -> PathBuf {
    let mut bytes = fs::read(testbed::file()).unwrap();
    let id = build_id();
    let id: Vec<u8> = (0..id.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&id[at..at + 2], 16).unwrap())
        .collect();
    let at = bytes.windows(id.len()).position(|window| window == id).expect("its own build id");
    bytes[at] ^= 0xff;
    let file = folder.join("other.ko");
    fs::write(&file, bytes).unwrap();
    file
}

/// The testbed is that of its file again.
pub(crate) fn put_back() {
    if testbed::is_loaded() {
        testbed::remove();
    }
    testbed::load();
}

fn warning<'a>(profile: &'a Recording, code: &str) -> &'a str {
    let found = profile.warnings.iter().find(|warning| warning.code == code);
    &found.unwrap_or_else(|| panic!("no {code}: {:?}", profile.warnings)).text
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_run_that_saw_two_builds_says_so_and_fails() {
    put_back();
    for backend in ["function-graph", "kprobe"] {
        let first = build_id();
        // The test ends the load.
        let load = "while [ ! -e \"$1/over\" ]; do sleep 0.1; done";
        let out = folder();
        let at = out.path().to_string_lossy().into_owned();
        let mut run = Started::run(
            &format!(
                "--module hids_testbed --handler {INNER} --backend {backend} --json {{}}/result.json"
            ),
            &["sh", "-c", load, "sh", &at],
        );
        run.wait_measuring();
        testbed::trigger("nested 100");
        let other = other_build(out.path());
        testbed::remove();
        testbed::insert(&other);
        let second = build_id();
        assert_ne!(first, second);
        testbed::trigger("nested 50");
        File::create(out.path().join("over")).unwrap();
        let ended = run.end();
        ended.assert_code(exit::DRIVER_REPLACED);
        ended.assert_error(&["hids_testbed", "replaced", &first, &second]);
        let profile = saved(run.path("result.json"), &ended.stdout);
        assert!(handler(&profile, INNER).count >= 100, "{backend}: {:?}", profile.handlers);
        let text = warning(&profile, "driver-replaced");
        assert!(text.contains(&first) && text.contains(&second), "{text}");
        assert_eq!(profile.modules[0].build_id.as_deref(), Some(first.as_str()));
        put_back();
    }
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_driver_that_was_unloaded_meanwhile_is_said_to_be_gone() {
    put_back();
    let line = format!("run --module hids_testbed --handler {INNER} --backend function-graph");
    let script = "echo nested 100 > /proc/hids_testbed/trigger; rmmod hids_testbed";
    let ended = Ended::of(profiler(&line).args(["--", "sh", "-c", script]));
    ended.assert_code(exit::DRIVER_REPLACED).assert_error(&["hids_testbed", "was unloaded"]);
    let row = ended.stdout.lines().find(|line| line.starts_with(&format!("{INNER} ")));
    assert!(row.is_some_and(|row| row.contains(" 100 ")), "{ended:?}");
    put_back();
}

/// Two rounds of a run between which `change` replaces the testbed: standard error, the series and the two builds. The exit
/// code is that of a replaced driver.
///
/// Standard error is a FIFO that the test fills up, so that the program waits between its two rounds.
fn two_rounds(handlers: &str, change: impl Fn(&mut Vec<u8>)) -> (Vec<String>, Series, [String; 2]) {
    put_back();
    let first = build_id();
    let out = folder();
    let other = other_build(out.path());
    let mut bytes = fs::read(&other).unwrap();
    change(&mut bytes);
    fs::write(&other, bytes).unwrap();
    let fifo = out.path().join("stderr");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let ours = || OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let mut lines = BufReader::new(ours()).lines();
    let line =
        format!("run --module hids_testbed {handlers} --backend function-graph --repeat 2 -o");
    let script = "while [ ! -e \"$1/filled\" ]; do sleep 0.1; done; \
                  echo nested 200 > /proc/hids_testbed/trigger";
    let file = out.path().join("series.json");
    let stdout = out.path().join("stdout");
    let mut child = profiler(&line)
        .arg(&file)
        .args(["--", "sh", "-c", script, "sh"])
        .arg(out.path())
        .stdout(File::create(&stdout).unwrap())
        .stderr(ours())
        .spawn()
        .unwrap();
    let mut next = || lines.next().unwrap().unwrap();
    while !next().starts_with("measuring") {}
    let mut filler = OpenOptions::new();
    let mut filler = filler.write(true).custom_flags(nix::libc::O_NONBLOCK).open(&fifo).unwrap();
    // Lines of one byte: full to the last.
    while filler.write(b"\n").is_ok() {}
    File::create(out.path().join("filled")).unwrap();
    // Then the probes of the first run are off.
    eventually("the first run does not end", || {
        fs::read_to_string("/sys/kernel/tracing/current_tracer").unwrap().trim() == "nop"
    });
    let address = || fs::read_to_string("/sys/module/hids_testbed/sections/.text").unwrap();
    let before = address();
    testbed::remove();
    // Takes the place of the testbed.
    let _ = Command::new("modprobe").args(["-q", "dummy"]).status();
    testbed::insert(&other);
    let second = build_id();
    println!("at {} and then at {}", before.trim(), address().trim());
    let text: Vec<String> = {
        let reading = std::thread::spawn(move || {
            let mut said = Vec::new();
            for line in lines.map_while(Result::ok) {
                if line == "over" {
                    break;
                }
                if !line.is_empty() {
                    said.push(line);
                }
            }
            said
        });
        let status = child.wait().unwrap();
        writeln!(ours(), "\nover").unwrap();
        let said = reading.join().unwrap();
        assert_eq!(status.code(), Some(i32::from(exit::DRIVER_REPLACED)), "{said:?}");
        said
    };
    put_back();
    (text, Series::read(&file).unwrap(), [first, second])
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn another_build_between_two_rounds_is_looked_up_anew() {
    let (text, series, [first, second]) = two_rounds(&format!("--handler {INNER}"), |_| {});
    assert_eq!(series.runs.len(), 2, "{text:?}");
    for (run, id) in series.runs.iter().zip([&first, &second]) {
        assert_eq!(handler(run, INNER).count, 200, "{text:?}");
        assert_whole(handler(run, INNER));
        assert_eq!(run.modules[0].build_id.as_ref(), Some(id));
    }
    let warned = warning(&series.runs[1], "driver-changed");
    assert!(warned.contains(&first) && warned.contains(&second), "{warned}");
    let error = text.iter().find(|line| line.starts_with("error: ")).unwrap();
    assert!(error.contains(&first) && error.contains(&second), "{error}");
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn what_a_glob_found_and_the_next_build_lacks_is_left_out_of_its_rounds() {
    const GONE: &[u8] = b"testbed_outer";
    let handlers = format!("--handler {INNER} --handler testbed_oute?");
    let (text, series, _) = two_rounds(&handlers, |bytes| {
        // In its symbols and its BTF.
        while let Some(at) = bytes.windows(GONE.len()).position(|window| window == GONE) {
            bytes[at + GONE.len() - 1] = b'x';
        }
    });
    assert_eq!(series.runs.len(), 2, "{text:?}");
    assert_eq!(handler(&series.runs[0], "testbed_outer").count, 200, "{text:?}");
    let second = &series.runs[1];
    assert_eq!(second.handlers.len(), 1, "{:?}", second.handlers);
    assert_eq!(handler(second, INNER).count, 200, "{text:?}");
    let left: Vec<(&str, &str)> =
        second.left_out.iter().map(|left| (left.name.as_str(), left.reason.as_str())).collect();
    assert_eq!(left, [("testbed_outer", "not in this build")]);
}
