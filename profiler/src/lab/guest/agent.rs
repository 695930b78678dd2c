//! Starts the program that uses the driver, and stops it when it is at rest.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::error::{Failure, exit};
use crate::lab::wire::Agent;

/// What it prints.
const OUTPUT: &str = "/run/agent";

/// Lines of it that an error carries.
const LINES: usize = 10;

/// Seconds of the guest's clock that it may take until it is at rest: a CPU that is idle for half a second of one.
const LIMIT: u32 = 30;
const IDLE_TICKS: u64 = 50;

/// Starts it, with its `files`, and waits until it has ended or is at rest; then it is stopped with all that it has started. Its reader
/// of what the driver reports would run between operations, and within them.
pub(super) fn start(agent: &Agent, files: &[u8]) -> Result<(), Failure> {
    let failed = |what: String| {
        let text = format!("the agent {}: {what}", agent.arguments.join(" "));
        Failure::new(exit::LAB_FAILED, text)
    };
    unpack(agent, files).map_err(|error| failed(format!("its files: {error}")))?;
    let mut child = spawn(agent).map_err(|error| failed(error.to_string()))?;
    for _ in 0..LIMIT {
        let before = idle();
        thread::sleep(Duration::from_secs(1));
        match child.try_wait().map_err(|error| failed(error.to_string()))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(failed(format!("{}; it said:\n{}", ended(status), said()))),
            None if idle().saturating_sub(before) >= IDLE_TICKS => {
                return stop(&child).map_err(failed);
            }
            None => {}
        }
    }
    Err(failed(format!(
        "it was not at rest within {LIMIT} s of the guest's clock; it said:\n{}",
        said()
    )))
}

/// Writes the files under their paths; those that are there stay.
fn unpack(agent: &Agent, files: &[u8]) -> io::Result<()> {
    for file in &agent.files {
        let path = Path::new(&file.path);
        if path.exists() {
            continue;
        }
        let [at, bytes] = file.bytes.map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let bytes = files.get(at..).and_then(|rest| rest.get(..bytes));
        let bytes = bytes.ok_or_else(|| io::Error::other("they are cut off"))?;
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, bytes)?;
        fs::set_permissions(path, Permissions::from_mode(file.mode))?;
    }
    Ok(())
}

fn spawn(agent: &Agent) -> io::Result<Child> {
    let output = File::create(OUTPUT)?;
    let (program, arguments) = agent.arguments.split_first().ok_or(io::ErrorKind::NotFound)?;
    Command::new(program)
        .args(arguments)
        .current_dir("/")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
}

/// Stops every process but the first, which is this one: kill(2).
fn stop(child: &Child) -> Result<(), String> {
    let words = |errno: nix::errno::Errno| format!("cannot stop it: {}", errno.desc());
    kill(Pid::from_raw(-1), Signal::SIGSTOP).map_err(words)?;
    waitpid(Pid::from_raw(child.id().cast_signed()), Some(WaitPidFlag::WUNTRACED))
        .map_err(words)?;
    Ok(())
}

/// Ticks of the guest's only CPU that it was idle for: proc_stat(5).
fn idle() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let idle = text.split_ascii_whitespace().nth(4);
    idle.and_then(|ticks| ticks.parse().ok()).unwrap_or_default()
}

fn ended(status: ExitStatus) -> String {
    format!("it ended with {status}")
}

/// The last lines that it has printed.
fn said() -> String {
    let text = fs::read(OUTPUT).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
