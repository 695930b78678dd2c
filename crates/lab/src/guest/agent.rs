//! Starts the program that uses the driver, and stops it when it is at rest.

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use profiler_base::error::{Failure, exit};
use profiler_base::text::last_lines;

use crate::wire::Agent;

/// What it prints.
pub(super) const OUTPUT: &str = "/run/agent";

/// Where programs look for others.
pub(super) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Lines of it that an error carries, of this many bytes at its end.
pub(super) const LINES: usize = 10;
const LAST_BYTES: u64 = 4 << 10;

/// What may be the reason.
const GUEST: &str =
    "(the guest has no network, and no file but the agent, its libraries and each --agent-file)";

/// Seconds of the guest's clock that it may take until it is at rest: a CPU that is idle for half a second of one.
const LIMIT: u32 = 30;
const IDLE_TICKS: u64 = 50;

/// Starts the program and waits until it has ended or is idle, then stops it with all processes that it has started: what reads the
/// driver's reports would else run between operations, and within them. Returns whether it has ended.
pub(super) fn start(agent: &Agent, files: &[u8]) -> Result<bool, Failure> {
    come_to_rest(agent, files).map_err(|what| failed(agent, exit::LAB_FAILED, &what))
}

fn come_to_rest(agent: &Agent, files: &[u8]) -> Result<bool, String> {
    unpack(agent, files).map_err(|error| format!("its files: {error}"))?;
    let mut child = spawn(agent).map_err(|error| error.to_string())?;
    let mut why = format!("it was not at rest within {LIMIT} s of the guest's clock");
    for _ in 0..LIMIT {
        let before = idle();
        thread::sleep(Duration::from_secs(1));
        let ended = child.try_wait().map_err(|error| error.to_string())?;
        if let Some(status) = ended.filter(|status| !status.success()) {
            why = format!("it ended with {status}");
            break;
        }
        if idle().saturating_sub(before) >= IDLE_TICKS {
            stop(ended.is_none().then_some(&child))?;
            return Ok(ended.is_some());
        }
    }
    Err(format!("{why}; {}\n{GUEST}", said(OUTPUT)))
}

/// What came of it.
pub(super) fn failed(agent: &Agent, code: u8, what: &str) -> Failure {
    Failure::new(code, format!("the agent {}: {what}", agent.arguments.join(" ")))
}

/// The part of the jobs' files at a place, which is an offset and a size.
pub(super) fn part(files: &[u8], place: [u64; 2]) -> Option<&[u8]> {
    let [at, bytes] = place.map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    files.get(at..)?.get(..bytes)
}

/// Writes the files under their paths.
pub(super) fn unpack(agent: &Agent, files: &[u8]) -> io::Result<()> {
    for file in &agent.files {
        let path = Path::new(&file.path);
        let bytes = part(files, file.bytes).ok_or_else(|| io::Error::other("they are cut off"))?;
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        // This program may be running what is there.
        let new = format!("{}.new", file.path);
        fs::write(&new, bytes)?;
        fs::set_permissions(&new, Permissions::from_mode(file.mode))?;
        fs::rename(&new, path)?;
    }
    Ok(())
}

/// The program with its arguments.
pub(super) fn command(agent: &Agent) -> io::Result<Command> {
    let (program, arguments) = agent.arguments.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").env("PATH", PATH);
    Ok(command)
}

fn spawn(agent: &Agent) -> io::Result<Child> {
    let output = File::create(OUTPUT)?;
    let mut command = command(agent)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()
}

/// Stops every process but the first, which is this one: kill(2). `child` is the program, if it goes on.
fn stop(child: Option<&Child>) -> Result<(), String> {
    let words = |errno: Errno| format!("cannot stop it: {}", errno.desc());
    match kill(Pid::from_raw(-1), Signal::SIGSTOP) {
        // It has ended, and left none.
        Err(Errno::ESRCH) => {}
        done => done.map_err(words)?,
    }
    let Some(child) = child else { return Ok(()) };
    let flags = WaitPidFlag::WUNTRACED | WaitPidFlag::WNOHANG;
    for _ in 0..LIMIT {
        match waitpid(Pid::from_raw(child.id().cast_signed()), Some(flags)).map_err(words)? {
            WaitStatus::Stopped(..) | WaitStatus::Exited(_, 0) => return Ok(()),
            WaitStatus::StillAlive => thread::sleep(Duration::from_millis(100)),
            other => return Err(format!("it ended when it was stopped: {other:?}")),
        }
    }
    Err("it cannot be stopped: a thread of it waits in the kernel".to_owned())
}

/// Ticks of the guest's only CPU that it was idle for: proc_stat(5).
fn idle() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let idle = text.split_ascii_whitespace().nth(4);
    idle.and_then(|ticks| ticks.parse().ok()).unwrap_or_default()
}

/// What was printed to a file, in words: the last lines.
pub(super) fn said(output: &str) -> String {
    let mut text = Vec::new();
    // The guest's memory is small.
    let _ = File::open(output).and_then(|mut file| {
        let from = file.metadata()?.len().saturating_sub(LAST_BYTES);
        file.seek(SeekFrom::Start(from))?;
        file.take(LAST_BYTES).read_to_end(&mut text)
    });
    match last_lines(&String::from_utf8_lossy(&text), LINES).as_str() {
        "" => "it said nothing".to_owned(),
        last => format!("it said:\n{last}"),
    }
}
