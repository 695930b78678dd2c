//! Operations on and by child processes and threads.

use std::ffi::{CString, c_void};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use profiler_recording::loads::Dimensions;

use super::worker::{Doing as _, NewWorker, OperationErrors, c_string, refused, simple};
use crate::sandbox::{ProfilerProgram, Role, wait_for_end_of_input};
use crate::syscalls;

pub(super) fn execve(profiler: ProfilerProgram, dimensions: Dimensions) -> NewWorker {
    let name = profiler.path().display().to_string();
    let path = c_string(profiler.path().as_os_str().as_bytes())?;
    let role = c_string(Role::ExecNoop.argument())?;
    let arguments: Vec<CString> =
        [path.clone(), role].into_iter().chain(filled("", dimensions.args)?).collect();
    // Nothing else: the same work on every machine.
    let environment: Vec<CString> = filled("A=", dimensions.env)?.into_iter().collect();
    simple(move || {
        let status = syscalls::execute(&path, &arguments, &environment);
        ended_well(&name, status.doing(format_args!("execute {name}"))?)
    })
}

/// `before` and that many letters; `None` for none.
fn filled(before: &str, count: u32) -> Result<Option<CString>, OperationErrors> {
    (count > 0).then(|| c_string(format!("{before}{}", "a".repeat(count as usize)))).transpose()
}

/// What the tracer writes to.
static TRACED_WORD: AtomicU64 = AtomicU64::new(0);

/// The `main` of [`Role::PtraceChild`]: reports an address, then waits to be killed, or for the end of its
/// input if the tracer is gone before it has attached.
pub(crate) fn ptrace_child_main() -> i32 {
    let mut out = std::io::stdout();
    let address = TRACED_WORD.as_ptr() as usize;
    if writeln!(out, "{address}").and_then(|()| out.flush()).is_err() {
        return 1;
    }
    wait_for_end_of_input();
    0
}

/// A child that is traced, killed and reaped on drop.
struct Tracee(Child);

impl Tracee {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed())
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes to the memory of a stopped child. Only the thread that attached can use `ptrace` on it.
pub(super) fn ptrace(profiler: &ProfilerProgram) -> NewWorker {
    let (child, address) = traced(profiler)?;
    // Changes each time, so that there is something to write.
    let mut value = 0_i64;
    simple(move || {
        value = value.wrapping_add(1);
        let written = ptrace::write(child.pid(), address as *mut c_void, value);
        let gone = if written == Err(Errno::ESRCH) { "; was it killed?" } else { "" };
        written.doing(format_args!("write to the traced child{gone}"))
    })
}

/// A stopped child, and an address of its memory.
fn traced(profiler: &ProfilerProgram) -> Result<(Tracee, usize), OperationErrors> {
    let mut command = profiler.command(Role::PtraceChild);
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    let path = profiler.path().display();
    let mut child = Tracee(command.spawn().doing(format_args!("a child to trace, {path}"))?);
    let pid = child.pid();

    let mut line = String::new();
    if let Some(output) = child.0.stdout.take() {
        let read = BufReader::new(output).read_line(&mut line);
        read.doing(format_args!("the child to trace, {path}, does not answer"))?;
    }
    let answer = line.trim_end();
    let address = answer.parse().map_err(|_| {
        refused(format!("the child to trace, {path}, answers `{answer}` instead of an address"))
    })?;
    ptrace::seize(pid, ptrace::Options::PTRACE_O_EXITKILL).map_err(|errno| {
        let allowed = "is ptrace allowed here (/proc/sys/kernel/yama/ptrace_scope, seccomp)?";
        refused(format!("attach to a child: {}: {allowed}", errno.desc()))
    })?;
    ptrace::interrupt(pid).doing("stop the traced child")?;
    match waitpid(pid, None).doing("stop the traced child")? {
        WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..) => Ok((child, address)),
        other => Err(refused(format!("stop the traced child: it has {other:?}"))),
    }
}

/// `setsid` needs a process that leads no process group: a new one each time.
pub(super) fn setsid() -> Result<(), OperationErrors> {
    let ended = syscalls::setsid_in_child().doing("setsid in a child")?;
    ended_well("setsid in a child", ended)
}

/// Fails unless a child has ended with exit code 0.
fn ended_well(what: &str, status: ExitStatus) -> Result<(), OperationErrors> {
    if status.success() {
        return Ok(());
    }
    Err(OperationErrors::one(status.to_string(), format!("{what}: {status}")))
}

/// Enough for a thread that does nothing.
const THREAD_STACK_BYTES: usize = 64 << 10;

/// A thread that is started and ends.
pub(super) fn exit() -> Result<(), OperationErrors> {
    let thread = std::thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn(|| ());
    let ended = thread.doing("start a thread")?.join();
    ended.map_err(|_| OperationErrors::one("panic", "a thread that does nothing panicked"))
}
