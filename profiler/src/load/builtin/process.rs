//! Operations on and by child processes and threads.

use std::ffi::c_void;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::worker::{OperationError, Worker};
use crate::load::sandbox::{ProfilerProgram, Role, wait_for_end_of_input};
use crate::load::syscalls;
use crate::recording::loads::OwnCalls;

pub(super) struct Execve {
    profiler: ProfilerProgram,
}

impl Execve {
    pub(super) fn new(profiler: ProfilerProgram) -> Self {
        Self { profiler }
    }
}

impl Worker for Execve {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        // An empty environment: the same work on every machine. The standard library uses `posix_spawn`,
        // which is safe with other threads, and one `execve`, as the path has a slash.
        let mut command = self.profiler.command(Role::ExecNoop);
        command.env_clear();
        calls.execve += 1;
        let status = command.status();
        let path = || self.profiler.path().display().to_string();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                let text = format!("{}: {status}", path());
                Err(OperationError { kind: status.to_string(), text })
            }
            Err(error) => Err(OperationError::of_io(&format!("execute {}", path()), &error)),
        }
    }
}

/// What the tracer writes to.
static TRACED_WORD: AtomicU64 = AtomicU64::new(0);

/// The `main` of [`Role::PtraceChild`]: reports an address, then waits to be killed, or for the end of its
/// input if the tracer is gone before it has attached.
pub(in crate::load) fn ptrace_child_main() -> i32 {
    let mut out = std::io::stdout();
    let address = TRACED_WORD.as_ptr() as usize;
    if writeln!(out, "{address}").and_then(|()| out.flush()).is_err() {
        return 1;
    }
    wait_for_end_of_input();
    0
}

/// A stopped child whose memory is written to. Only the thread that attached can use `ptrace` on it.
pub(super) struct Ptrace {
    child: Tracee,
    address: usize,
    /// Changes each time, so that there is something to write.
    value: i64,
}

/// Kills and reaps the child on drop.
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

impl Ptrace {
    pub(super) fn new(profiler: &ProfilerProgram, calls: &mut OwnCalls) -> Result<Self, String> {
        let mut command = profiler.command(Role::PtraceChild);
        command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
        calls.execve += 1;
        let path = profiler.path().display();
        let child =
            command.spawn().map_err(|error| format!("a child to trace, {path}: {error}"))?;
        let mut child = Tracee(child);
        let pid = child.pid();

        let mut line = String::new();
        if let Some(output) = child.0.stdout.take() {
            let read = BufReader::new(output).read_line(&mut line);
            read.map_err(|error| format!("the child to trace, {path}, does not answer: {error}"))?;
        }
        let address = line.trim_end().parse().map_err(|_| {
            format!(
                "the child to trace, {path}, answers `{}` instead of an address",
                line.trim_end()
            )
        })?;

        calls.ptrace_attach += 1;
        ptrace::seize(pid, ptrace::Options::PTRACE_O_EXITKILL).map_err(|errno| {
            let allowed = "is ptrace allowed here (/proc/sys/kernel/yama/ptrace_scope, seccomp)?";
            format!("attach to a child: {}: {allowed}", errno.desc())
        })?;
        let stop = |errno: Errno| format!("stop the traced child: {}", errno.desc());
        calls.ptrace += 1;
        ptrace::interrupt(pid).map_err(stop)?;
        match waitpid(pid, None).map_err(stop)? {
            WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..) => {}
            other => return Err(format!("stop the traced child: it has {other:?}")),
        }
        Ok(Self { child, address, value: 0 })
    }
}

impl Worker for Ptrace {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        self.value = self.value.wrapping_add(1);
        calls.ptrace += 1;
        ptrace::write(self.child.pid(), self.address as *mut c_void, self.value).map_err(|errno| {
            let gone = if errno == Errno::ESRCH { "; was it killed?" } else { "" };
            OperationError::new(&format!("write to the traced child{gone}"), errno)
        })
    }
}

/// `setsid` needs a process that leads no process group: a new one each time.
pub(super) struct Setsid;

impl Worker for Setsid {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.setsid += 1;
        ended_well("setsid in a child", syscalls::setsid_in_child())
    }
}

/// Fails unless a child has ended with exit code 0.
fn ended_well(doing: &str, ended: std::io::Result<ExitStatus>) -> Result<(), OperationError> {
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            Err(OperationError { kind: status.to_string(), text: format!("{doing}: {status}") })
        }
        Err(error) => Err(OperationError::of_io(doing, &error)),
    }
}

/// A thread that is started and ends.
pub(super) struct Exit;

impl Worker for Exit {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        calls.exit += 1;
        let thread = std::thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn(|| ());
        let thread = thread.map_err(|error| OperationError::of_io("start a thread", &error))?;
        thread.join().map_err(|_| OperationError {
            kind: "panic".to_owned(),
            text: "a thread that does nothing panicked".to_owned(),
        })
    }
}

/// Enough for a thread that does nothing.
const THREAD_STACK_BYTES: usize = 64 << 10;

/// `kill` and `tkill` with signal 0: everything but the delivery.
pub(super) struct Signal0 {
    pub(super) to_thread: bool,
}

impl Worker for Signal0 {
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError> {
        if self.to_thread {
            calls.tkill += 1;
            syscalls::tkill_self().map_err(|error| OperationError::of_io("tkill", &error))
        } else {
            calls.kill += 1;
            nix::sys::signal::kill(Pid::this(), None)
                .map_err(|errno| OperationError::new("kill", errno))
        }
    }
}
