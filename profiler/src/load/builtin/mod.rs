//! Load generators inside the program: one system call over and over, every one counted.
//!
//! What one operation is, and which hooks it reaches. "Set-up" is once a worker, and is counted in
//! [`OwnCalls`] like the rest, so that the calls of a probe can be compared to the call. What has to be
//! there for an operation is prepared before it is due, and is no part of its latency.
//!
//! | kind | one operation | reaches, once each | besides |
//! |---|---|---|---|
//! | `connect` | `connect` of a UDP socket, always the same one, to 127.0.0.1 port 9; nothing is sent | `connect` | - |
//! | `bind` | a new UDP socket, `bind` to 127.0.0.1 and a free port, `close` | `bind` | - |
//! | `execve` | starts this program as one that ends at once, and waits for its end | `execve`, `exit_group` | - |
//! | `open` | creates a new file in a private directory, closes and unlinks it | `security_inode_create`, `security_path_unlink` | - |
//! | `ptrace` | `PTRACE_POKEDATA` of a word that a child has set aside for it | `ptrace`, `arch_ptrace` | set-up: `execve` (the child); `ptrace` twice, and `arch_ptrace` once of these |
//! | `udp-recv` | a datagram to a socket of its own, then `recvfrom` on that | `udp_recvmsg` (and `udp_sendmsg`) | set-up: `bind` |
//! | `dns` | the same, with the shape of a DNS answer and from port 5353 | `udp_recvmsg` (and `udp_sendmsg`) | set-up: `bind` twice |
//! | `accept` | `accept4` of a TCP connection from 127.0.0.1; both ends are closed | `accept4` | before each: `connect`; set-up: `bind` |
//! | `rename` | `renameat` of a file there and back | `security_inode_rename` | set-up: `security_inode_create` |
//! | `link` | `linkat`: a second name for a file | `security_inode_link` | before each: `unlink` of that name; set-up: `security_inode_create` |
//! | `unlink` | `unlinkat` of a file's second name | `security_path_unlink` | before each: `link`; set-up: `security_inode_create` |
//! | `rmdir` | `unlinkat` of an empty folder | `security_path_rmdir` | before each: `mkdir` |
//! | `write` | `write` of 64 bytes to the begin of a file | `vfs_write` | set-up: `security_inode_create` |
//! | `mount` | `mount` of a tmpfs, in a mount namespace of the worker's own; needs root | `security_sb_mount` | before each: `umount2`; set-up: `security_sb_mount` |
//! | `memfd-create` | `memfd_create`, `close` | `memfd_create` | - |
//! | `mprotect` | `mprotect` of a page to executable, every other time writable too | `security_file_mprotect` | - |
//! | `setsid` | `fork`, `setsid` in the child, and its end | `setsid`, `exit_group` | - |
//! | `prctl` | `PR_SET_NAME`, every time another name than before | `prctl` | - |
//! | `update-cred` | `setuid` of the thread to the id that it has | `commit_creds` | - |
//! | `kill`, `tkill` | of itself, with signal 0 | `kill`, `tkill` | - |
//! | `nanosleep` | `nanosleep` of 1 ns (the timer's slack adds to it) | `nanosleep` | - |
//! | `exit` | starts a thread that ends, and waits for it | `exit` | - |
//! | `call-usermodehelper` | `socket` of family 0, for which the kernel starts modprobe in vain | `call_usermodehelper_exec` | in the helper: `execve`, `exit_group` |
//!
//! There is none for `do_init_module`: a process reaches it with a valid module alone, which would have
//! to be built for the running kernel. A command of the user can load and remove one.
//!
//! `open`, `rename`, `link`, `unlink`, `rmdir`, `write` and `mount` work in a private directory, whose
//! guard adds one `execve` a load.

use std::path::PathBuf;
use std::time::Instant;

use nix::errno::Errno;
use tokio::sync::oneshot;

use super::{
    HelperProgram, Load, LoadFailure, LoadOutcome, LoadSpec, LoadStatus, OwnCalls, Rate, Running,
    StopReason, StopSignal,
};

mod drive;
mod files;
mod kind;
mod latency;
mod net;
mod own;
mod process;

pub use kind::{BuiltinKind, NoSuchBuiltin};
pub(crate) use latency::LATENCY_DIGITS;
pub use latency::{Latency, OperationTimes};

/// One operation over and over on threads of its own: by default one worker, as fast as it goes, until
/// stopped.
#[derive(Debug, Clone)]
pub struct BuiltinLoad {
    kind: BuiltinKind,
    pub(super) workers: u32,
    pub(super) rate: Option<Rate>,
    pub(super) operations: Option<u64>,
    pub(super) pin: bool,
    pub(super) measured_from: Option<Instant>,
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
            pin: false,
            measured_from: None,
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

    /// Keeps each worker on one CPU: worker `n` on the `n`-th of those that this process may use, round
    /// and round.
    #[must_use]
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Leaves the operations of the warm-up, which began or were due before this time, out of the
    /// latencies (and of nothing else).
    #[must_use]
    pub fn measured_from(mut self, from: Option<Instant>) -> Self {
        self.measured_from = from;
        self
    }

    /// Sets where loads on files make their private directory; by default the directory for temporary files.
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

    /// Its operation.
    #[must_use]
    pub fn kind(&self) -> BuiltinKind {
        self.kind
    }

    pub(super) fn own_directory(&self) -> Option<PathBuf> {
        self.directory.clone()
    }

    pub(super) fn helper_program(&self) -> &HelperProgram {
        &self.helper
    }

    /// Runs it here and now, in a process that does nothing else: the CPU time of the process is its
    /// cost.
    pub(super) fn run_alone(&self, stop: &StopSignal) -> LoadOutcome {
        drive::run(self, stop, true)
    }

    /// Makes what one worker needs, on that worker's thread.
    fn worker(
        &self,
        shared: &Shared,
        index: u32,
        calls: &mut OwnCalls,
    ) -> Result<Box<dyn Worker>, String> {
        use BuiltinKind as Kind;
        Ok(match self.kind {
            Kind::Connect => Box::new(net::Connect::new()?),
            Kind::Bind => Box::new(net::Bind::new()?),
            Kind::UdpRecv => Box::new(net::UdpReceive::new(calls)?),
            Kind::Dns => Box::new(net::UdpReceive::dns(index, calls)?),
            Kind::Accept => Box::new(net::Accept::new(calls)?),
            Kind::Execve => Box::new(process::Execve::new(self.helper.clone())),
            Kind::Ptrace => Box::new(process::Ptrace::new(&self.helper, calls)?),
            Kind::Setsid => Box::new(process::Setsid),
            Kind::Exit => Box::new(process::Exit),
            Kind::Kill => Box::new(process::Signal0 { to_thread: false }),
            Kind::Tkill => Box::new(process::Signal0 { to_thread: true }),
            Kind::Open => Box::new(files::Create::new(shared, index)?),
            Kind::Rename => Box::new(files::Rename::new(shared, index, calls)?),
            Kind::Link => {
                Box::new(files::SecondName::new(shared, index, files::Measured::Link, calls)?)
            }
            Kind::Unlink => {
                Box::new(files::SecondName::new(shared, index, files::Measured::Unlink, calls)?)
            }
            Kind::Rmdir => Box::new(files::Rmdir::new(shared, index)?),
            Kind::Write => Box::new(files::Write::new(shared, index, calls)?),
            Kind::Mount => Box::new(own::Mount::new(shared, index, calls)?),
            Kind::MemfdCreate => Box::new(own::MemfdCreate),
            Kind::Mprotect => Box::new(own::Mprotect::new()?),
            Kind::Prctl => Box::new(own::Prctl::new()),
            Kind::UpdateCred => Box::new(own::UpdateCred),
            Kind::Nanosleep => Box::new(own::Nanosleep),
            Kind::CallUsermodehelper => Box::new(own::CallUsermodehelper::new()?),
        })
    }

    /// Makes what all workers share.
    fn shared(&self, calls: &mut OwnCalls) -> Result<Shared, String> {
        let directory = if self.kind.needs_directory() {
            let within = self.directory.clone().unwrap_or_else(std::env::temp_dir);
            Some(files::PrivateDirectory::new(&within, &self.helper, calls)?)
        } else {
            None
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
            pin: self.pin,
            user: None,
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
                let _ = done.send(drive::run(&self, &of_thread, false));
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
    directory: Option<files::PrivateDirectory>,
}

/// One thread's side of a load.
trait Worker {
    /// Makes what the next operation needs. It is no part of it: its time is not measured, and at a
    /// fixed rate it is done before the operation is due.
    fn prepare(&mut self, _calls: &mut OwnCalls) -> Result<(), OperationError> {
        Ok(())
    }

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
