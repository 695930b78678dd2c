//! Load generators inside the program: one system call over and over, every one counted.
//!
//! What one operation is, and which hooks it reaches. "Set-up" is once a worker, and is counted in
//! [`OwnCalls`] like the rest, so that the calls of a probe can be compared to the call.
//!
//! | kind | one operation | reaches, once each | set-up reaches |
//! |---|---|---|---|
//! | `connect` | `connect` of a UDP socket, always the same one, to 127.0.0.1 port 9; nothing is sent | `connect` | - |
//! | `bind` | a new UDP socket, `bind` to 127.0.0.1 and a free port, `close` | `bind` | - |
//! | `execve` | starts this program as one that ends at once, and waits for its end | `execve` (and `exit`) | - |
//! | `open` | creates a new file in a private directory, closes and unlinks it | `security_inode_create`, `unlink` | `execve` once a load: the guard of the directory |
//! | `ptrace` | `PTRACE_POKEDATA` of a word that a child has set aside for it | `ptrace`, `arch_ptrace` | `execve` (the child); `ptrace` twice, and `arch_ptrace` once of these |
//! | `udp-recv` | a datagram to a socket of its own, then `recvfrom` on that | `udp_recvmsg` (and `udp_sendmsg`) | `bind` |

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{
    HelperProgram, Load, LoadFailure, LoadOutcome, LoadSpec, LoadStatus, OwnCalls, Rate, Running,
    StopReason, StopSignal,
};

mod drive;
mod net;
mod open;
mod process;

/// Which operation a built-in load repeats. The module's table says what each does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum BuiltinKind {
    /// `connect` of a UDP socket.
    Connect,
    /// `bind` of a UDP socket.
    Bind,
    /// `execve` of a program that ends at once.
    Execve,
    /// Creation of a file.
    Open,
    /// A request to a traced process.
    Ptrace,
    /// Receipt of a UDP datagram.
    UdpRecv,
}

impl BuiltinKind {
    /// All kinds, in the order of the help text.
    pub const ALL: [Self; 6] =
        [Self::Connect, Self::Bind, Self::Execve, Self::Open, Self::Ptrace, Self::UdpRecv];

    /// Its name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Bind => "bind",
            Self::Execve => "execve",
            Self::Open => "open",
            Self::Ptrace => "ptrace",
            Self::UdpRecv => "udp-recv",
        }
    }
}

impl fmt::Display for BuiltinKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no built-in load has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no built-in load `{given}`; there are {}", BuiltinKind::ALL.map(BuiltinKind::name).join(", "))]
pub struct NoSuchBuiltin {
    given: String,
}

impl FromStr for BuiltinKind {
    type Err = NoSuchBuiltin;

    fn from_str(given: &str) -> Result<Self, NoSuchBuiltin> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == given);
        found.ok_or_else(|| NoSuchBuiltin { given: given.to_owned() })
    }
}

/// One operation over and over on threads of its own: by default one worker, as fast as it goes, until
/// stopped.
#[derive(Debug, Clone)]
pub struct BuiltinLoad {
    kind: BuiltinKind,
    workers: u32,
    rate: Option<Rate>,
    operations: Option<u64>,
    directory: Option<PathBuf>,
    helper: HelperProgram,
}

impl BuiltinLoad {
    /// The load `kind` with the defaults.
    #[must_use]
    pub fn new(kind: BuiltinKind) -> Self {
        Self {
            kind,
            workers: 1,
            rate: None,
            operations: None,
            directory: None,
            helper: HelperProgram::this_program(),
        }
    }

    /// Sets the number of threads; 0 is taken as 1.
    #[must_use]
    pub fn workers(mut self, workers: u32) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Sets the operations per second over all workers. Late operations are made up for, never skipped.
    /// `None` is a closed loop.
    #[must_use]
    pub fn rate(mut self, rate: Option<Rate>) -> Self {
        self.rate = rate;
        self
    }

    /// Sets the operations in total, failed ones included, shared evenly over the workers; `None` goes
    /// on until stopped.
    #[must_use]
    pub fn operations(mut self, operations: Option<u64>) -> Self {
        self.operations = operations;
        self
    }

    /// Sets where `open` makes its private directory; by default the directory for temporary files.
    #[must_use]
    pub fn directory(mut self, directory: Option<PathBuf>) -> Self {
        self.directory = directory;
        self
    }

    /// Sets the program that `execve` executes and `ptrace` traces.
    #[must_use]
    pub fn helper(mut self, helper: HelperProgram) -> Self {
        self.helper = helper;
        self
    }

    /// Makes what one worker needs, on that worker's thread.
    fn worker(
        &self,
        shared: &Shared,
        index: u32,
        calls: &mut OwnCalls,
    ) -> Result<Box<dyn Worker>, String> {
        Ok(match self.kind {
            BuiltinKind::Connect => Box::new(net::Connect::new()?),
            BuiltinKind::Bind => Box::new(net::Bind::new()?),
            BuiltinKind::UdpRecv => Box::new(net::UdpReceive::new(calls)?),
            BuiltinKind::Execve => Box::new(process::Execve::new(self.helper.clone())),
            BuiltinKind::Ptrace => Box::new(process::Ptrace::new(&self.helper, calls)?),
            BuiltinKind::Open => Box::new(open::Create::new(shared, index)?),
        })
    }

    /// Makes what all workers share.
    fn shared(&self, calls: &mut OwnCalls) -> Result<Shared, String> {
        let directory = match self.kind {
            BuiltinKind::Open => {
                let within = self.directory.clone().unwrap_or_else(std::env::temp_dir);
                Some(open::PrivateDirectory::new(&within, &self.helper, calls)?)
            }
            _ => None,
        };
        Ok(Shared { directory })
    }
}

impl Load for BuiltinLoad {
    fn describe(&self) -> LoadSpec {
        LoadSpec::Builtin {
            name: self.kind,
            workers: self.workers,
            rate_per_s: self.rate,
            operations: self.operations,
        }
    }

    fn run(self: Box<Self>, stop: StopSignal) -> Running {
        Box::pin(async move {
            let started = Instant::now();
            let broke_off = |text| {
                let failure = LoadFailure::BrokeOff { text };
                LoadOutcome::ended(LoadStatus::Failed(failure), started)
            };
            let (done, outcome) = oneshot::channel();
            let of_thread = stop.clone();
            // Threads of its own: blocking calls must not hold up the runtime that drains the histograms.
            let thread = std::thread::Builder::new().name(format!("load-{}", self.kind));
            let thread = thread.spawn(move || {
                // Nobody waits any more only if the future was dropped, which has stopped the load.
                let _ = done.send(drive::run(&self, &of_thread));
            });
            let thread = match thread {
                Ok(thread) => thread,
                Err(error) => return broke_off(format!("no thread for the load: {error}")),
            };
            let mut on_drop = StopOnDrop { stop: &stop, armed: true };
            let outcome = outcome.await;
            on_drop.armed = false;
            drop(on_drop);
            // The outcome is the last thing the thread does, so this does not block.
            let _ = thread.join();
            outcome.unwrap_or_else(|_| {
                broke_off("its thread panicked; this is a fault of the profiler".to_owned())
            })
        })
    }
}

/// Stops the load whose future is dropped before its end.
struct StopOnDrop<'a> {
    stop: &'a StopSignal,
    armed: bool,
}

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.stop.stop(StopReason::Interrupted);
        }
    }
}

/// What all workers of one load share.
struct Shared {
    directory: Option<open::PrivateDirectory>,
}

/// One thread's side of a load.
trait Worker {
    /// Does one operation, and adds the system calls it made, whether they succeeded or not.
    fn operate(&mut self, calls: &mut OwnCalls) -> Result<(), OperationError>;
}

/// One operation that failed.
#[derive(Debug)]
struct OperationError {
    /// What errors are counted by.
    kind: String,
    text: String,
}

impl OperationError {
    fn new(doing: &str, errno: Errno) -> Self {
        Self { kind: format!("{errno:?}"), text: format!("{doing}: {}", errno.desc()) }
    }

    fn of_io(doing: &str, error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::new(doing, Errno::from_raw(errno)),
            None => Self { kind: format!("{:?}", error.kind()), text: format!("{doing}: {error}") },
        }
    }
}
