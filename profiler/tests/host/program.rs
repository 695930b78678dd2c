//! The program as tests start it, and this one.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs `profiler` to its end.
pub(crate) fn profiler(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_profiler")).args(args).output().unwrap()
}

/// This program, with one test of it alone to run: the process may be killed, and have its own environment.
pub(crate) fn this_program(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--format", "terse", "--nocapture"]);
    // A name that no test has would be a run without failures.
    let listed =
        Command::new(command.get_program()).args(command.get_args()).arg("--list").output();
    assert_eq!(text(&listed.unwrap().stdout), format!("{test}: test\n"));
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Whether a process lives; a zombie does not.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

/// Reads a run's standard error until it measures; the rest is in the reader.
pub(crate) fn wait_measuring<R: Read>(stderr: R) -> BufReader<R> {
    let mut lines = BufReader::new(stderr);
    let mut line = String::new();
    while !line.starts_with("measuring") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended before it measured");
    }
    lines
}

/// How long a test waits for what has to come. What runs in a session of its own can get a thirtieth of a busy machine: the
/// scheduler shares it among sessions (sched(7), autogroups), and other sessions may come first.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

#[track_caller]
pub(crate) fn wait_for(what: &str, mut come: impl FnMut() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !come() {
        assert!(Instant::now() < patience, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
