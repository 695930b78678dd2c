//! Loads: what makes the machine call the handlers while they are measured.
//!
//! A load is started after the probes are attached and stopped by a [`StopSignal`]. It says what it is
//! ([`LoadSpec`]) and what came of it ([`LoadOutcome`]). It knows nothing of probes.
//!
//! | load | does | ends |
//! |---|---|---|
//! | [`BuiltinLoad`] | one system call over and over, counted exactly | after its operations, or when stopped |
//! | [`HostedLoad`] | the same in a process of its own, as an unprivileged user | the same |
//! | [`CommandLoad`] | a command of the user | when the command ends, or when stopped |
//! | [`ltp::LtpLoad`] | tests of the Linux Test Project | when its rounds are made, or when stopped |
//! | [`IdleLoad`] | nothing: measures what the machine does by itself | when stopped |
//!
//! A program that uses the built-in `execve` and `ptrace` loads or a command must call
//! [`become_helper_if_asked`] first thing in `main`: these loads start the program itself again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

pub mod builtin;
mod command;
mod confine;
mod family;
mod folder;
mod guard;
mod guarded;
mod helper;
mod hits;
mod hosted;
pub mod ltp;
mod rate;
mod stop;
mod sys;
mod timed;
mod undo;

pub(crate) use builtin::LATENCY_DIGITS;
pub use builtin::{BuiltinKind, BuiltinLoad, Latency, OperationTimes};
pub use command::CommandLoad;
pub use confine::{BadUser, Confinement, LoadUser};
pub(crate) use folder::changeable;
pub use helper::{HelperProgram, become_helper_if_asked};
pub use hits::{HitCount, HitCounter, HitQuestion};
pub use hosted::HostedLoad;
pub use rate::{BadRate, Rate};
pub use stop::{StopReason, StopSignal};
pub(crate) use sys::dying_with_parent;
pub use timed::{cpu_time_of_builtin, time_builtin};
pub use undo::Undo;

/// What a load is: enough to run the same load again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LoadSpec {
    /// A load generator inside this program.
    Builtin {
        /// Which one.
        name: BuiltinKind,
        /// Threads that do the operations.
        workers: u32,
        /// Operations per second over all workers; `None` is a closed loop, as fast as it goes.
        #[serde(default)]
        rate_per_s: Option<Rate>,
        /// Operations in total over all workers; `None` is until stopped.
        #[serde(default)]
        operations: Option<u64>,
        /// Whether each worker was kept on one CPU.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pin: bool,
        /// The user it ran as, where it was another one than the profiler's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
    },
    /// A command of the user.
    Command {
        /// Name and arguments. Bytes that are not UTF-8 are shown as U+FFFD.
        argv: Vec<String>,
    },
    /// Tests of the Linux Test Project.
    Ltp(Box<ltp::LtpSpec>),
    /// No load: what happens on the machine anyway.
    Idle,
}

impl fmt::Display for LoadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin { name, workers, rate_per_s, operations, pin, user } => {
                let plural = if *workers == 1 { "" } else { "s" };
                write!(f, "builtin {name}, {workers} worker{plural}")?;
                if *pin {
                    f.write_str(" pinned to CPUs")?;
                }
                if let Some(user) = user {
                    write!(f, " as {user}")?;
                }
                match rate_per_s {
                    Some(rate) => write!(f, ", {rate}")?,
                    None => f.write_str(", as fast as it goes")?,
                }
                match operations {
                    Some(operations) => write!(f, ", {operations} operations"),
                    None => Ok(()),
                }
            }
            Self::Command { argv } => write!(f, "command {}", argv.join(" ")),
            Self::Ltp(spec) => spec.fmt(f),
            Self::Idle => f.write_str("none"),
        }
    }
}

/// What came of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LoadOutcome {
    /// How it ended.
    pub status: LoadStatus,
    /// Operations that succeeded; `None` where the load cannot know (a command).
    #[serde(default)]
    pub operations: Option<u64>,
    /// Operations that failed, by kind; empty is none.
    #[serde(default)]
    pub errors: Vec<OperationErrors>,
    /// From the start of the first operation (set-up excluded) to the end of the last, in nanoseconds.
    pub elapsed_ns: u64,
    /// Operations that succeeded per second of `elapsed_ns`; `None` where operations are unknown or
    /// no time passed.
    #[serde(default)]
    pub held_rate_per_s: Option<f64>,
    /// At a fixed rate: the longest that an operation started after it was due, in nanoseconds.
    #[serde(default)]
    pub max_late_ns: Option<u64>,
    /// System calls the load itself made, set-up included; `None` where it cannot know.
    #[serde(default)]
    pub calls: Option<OwnCalls>,
    /// How long its operations took; `None` where the load cannot know (a command).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// What became of each test of LTP, in the order of the list; empty for other loads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<ltp::TestRuns>,
    /// CPU time of the process that made the operations and of its children, from the first operation
    /// to the end of the last, warm-up included; `None` where the load has no process of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuTime>,
}

/// CPU time in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CpuTime {
    /// In user mode.
    pub user_ns: u64,
    /// In the kernel.
    pub system_ns: u64,
}

impl LoadOutcome {
    /// CPU time per operation in nanoseconds, user mode and kernel together, over all operations that
    /// were tried; `None` where it is not known.
    #[must_use]
    pub fn cpu_ns_per_operation(&self) -> Option<f64> {
        let cpu = self.cpu?;
        let failed: u64 = self.errors.iter().map(|errors| errors.count).sum();
        crate::stats::mean(cpu.user_ns + cpu.system_ns, self.operations? + failed)
    }

    /// An outcome that knows its end and its time, and nothing of operations.
    #[must_use]
    pub fn ended(status: LoadStatus, started: Instant) -> Self {
        Self {
            status,
            operations: None,
            errors: Vec::new(),
            elapsed_ns: nanoseconds(started.elapsed()),
            held_rate_per_s: None,
            max_late_ns: None,
            calls: None,
            latency: None,
            tests: Vec::new(),
            cpu: None,
        }
    }
}

/// How a load ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LoadStatus {
    /// All its work was done: the command ended with 0, or every operation was made.
    Completed,
    /// It was told to end before that.
    Stopped {
        /// By what.
        by: StopReason,
    },
    /// It could not do what was asked.
    Failed(LoadFailure),
}

/// Why a load failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum LoadFailure {
    /// The command ended by itself with a code other than 0.
    #[error("the load command ended with exit code {code}")]
    ExitCode {
        /// That code.
        code: i32,
    },
    /// The command was killed by a signal that this program did not send.
    #[error("the load command was killed by signal {number} ({name})")]
    Signal {
        /// Number of the signal.
        number: i32,
        /// Its name, such as `SIGSEGV`.
        name: String,
    },
    /// The load never began.
    #[error("the load could not start: {text}")]
    CouldNotStart {
        /// What failed, and what to do.
        text: String,
    },
    /// The load began and could not go on.
    #[error("the load broke off: {text}")]
    BrokeOff {
        /// What failed, and what to do.
        text: String,
    },
}

/// Failed operations of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OperationErrors {
    /// Name of the error, such as `ECONNREFUSED`.
    pub kind: String,
    /// How many operations failed so.
    pub count: u64,
    /// The first of them in words.
    pub first: String,
}

/// System calls that a built-in load made itself, set-up included: what a probe on the matching kernel
/// function sees of this load. Exact as long as `errors` is empty (a failed `open` may or may not have
/// come as far as the hook). What the runtime of a program calls by itself (`mprotect`, `write`, `exit`,
/// ...) is not in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnCalls {
    /// `connect(2)`.
    pub connect: u64,
    /// `bind(2)`.
    pub bind: u64,
    /// `execve(2)`, made on the load's behalf in its children.
    pub execve: u64,
    /// `openat(2)` that created a file: one `security_inode_create` each.
    pub open_create: u64,
    /// `ptrace(2)` requests that reach `arch_ptrace`.
    pub ptrace: u64,
    /// `ptrace(2)` requests that attach, which end before `arch_ptrace`.
    pub ptrace_attach: u64,
    /// Receiving calls on a UDP socket: one `udp_recvmsg` each.
    pub udp_recvmsg: u64,
    /// `rename(2)` and its kin.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rename: u64,
    /// `link(2)` and its kin.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub link: u64,
    /// `unlink(2)` and its kin, of files.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlink: u64,
    /// `rmdir(2)`, also as `unlinkat(2)`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rmdir: u64,
    /// `write(2)` to a file of the load.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub write: u64,
    /// `mount(2)`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mount: u64,
    /// `memfd_create(2)`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memfd_create: u64,
    /// `mprotect(2)` that makes memory executable.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mprotect: u64,
    /// `accept4(2)`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub accept: u64,
    /// `setsid(2)`, made on the load's behalf in its children.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub setsid: u64,
    /// `prctl(2)` that names the thread.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prctl: u64,
    /// `setuid(2)`: one `commit_creds` each.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub commit_creds: u64,
    /// `kill(2)`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kill: u64,
    /// `tkill(2)`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tkill: u64,
    /// `nanosleep(2)`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nanosleep: u64,
    /// `exit(2)` of threads started for it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub exit: u64,
    /// `socket(2)` for which the kernel starts a program: one `call_usermodehelper_exec` each.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub usermodehelper: u64,
}

/// Kinds of calls that a load does not make are left out of its JSON.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl std::ops::AddAssign for OwnCalls {
    fn add_assign(&mut self, more: Self) {
        // Taken apart by name, so that a new field cannot be forgotten here.
        let Self {
            connect,
            bind,
            execve,
            open_create,
            ptrace,
            ptrace_attach,
            udp_recvmsg,
            rename,
            link,
            unlink,
            rmdir,
            write,
            mount,
            memfd_create,
            mprotect,
            accept,
            setsid,
            prctl,
            commit_creds,
            kill,
            tkill,
            nanosleep,
            exit,
            usermodehelper,
        } = more;
        self.connect += connect;
        self.bind += bind;
        self.execve += execve;
        self.open_create += open_create;
        self.ptrace += ptrace;
        self.ptrace_attach += ptrace_attach;
        self.udp_recvmsg += udp_recvmsg;
        self.rename += rename;
        self.link += link;
        self.unlink += unlink;
        self.rmdir += rmdir;
        self.write += write;
        self.mount += mount;
        self.memfd_create += memfd_create;
        self.mprotect += mprotect;
        self.accept += accept;
        self.setsid += setsid;
        self.prctl += prctl;
        self.commit_creds += commit_creds;
        self.kill += kill;
        self.tkill += tkill;
        self.nanosleep += nanosleep;
        self.exit += exit;
        self.usermodehelper += usermodehelper;
    }
}

/// A load on its way to an outcome.
pub type Running = Pin<Box<dyn Future<Output = LoadOutcome> + Send>>;

/// Something that drives the handlers.
pub trait Load: Send {
    /// What this load is.
    fn describe(&self) -> LoadSpec;

    /// Runs to the end of the work or until `stop`, whichever comes first, and leaves nothing behind:
    /// no process, no thread, no file. Dropping the future ends the load too.
    fn run(self: Box<Self>, stop: StopSignal) -> Running;
}

/// One load of a run with what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LoadRun {
    /// What it was.
    pub spec: LoadSpec,
    /// What came of it.
    pub outcome: LoadOutcome,
}

/// Runs `loads` side by side until all have ended, and returns them in the order given.
///
/// When one fails the others are stopped: percentiles of half a mix would look like those of the mix.
pub async fn run_all(loads: Vec<Box<dyn Load>>, stop: &StopSignal) -> Vec<LoadRun> {
    let mut runs: Vec<LoadRun> = Vec::new();
    let mut running = JoinSet::new();
    for (index, load) in loads.into_iter().enumerate() {
        let started = Instant::now();
        let spec = load.describe();
        let text = "its task ended early; this is a fault of the profiler".to_owned();
        let failure = LoadFailure::BrokeOff { text };
        let outcome = LoadOutcome::ended(LoadStatus::Failed(failure), started);
        runs.push(LoadRun { spec, outcome });
        let run = load.run(stop.clone());
        running.spawn(async move { (index, run.await) });
    }
    while let Some(ended) = running.join_next().await {
        let failed = match ended {
            Ok((index, outcome)) => {
                let failed = matches!(outcome.status, LoadStatus::Failed(_));
                if let Some(run) = runs.get_mut(index) {
                    run.outcome = outcome;
                }
                failed
            }
            Err(_) => true,
        };
        if failed {
            stop.stop(StopReason::LoadFailed);
        }
    }
    runs
}

/// No load at all: lets the machine be until stopped.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdleLoad;

impl Load for IdleLoad {
    fn describe(&self) -> LoadSpec {
        LoadSpec::Idle
    }

    fn run(self: Box<Self>, stop: StopSignal) -> Running {
        Box::pin(async move {
            let started = Instant::now();
            let by = stop.stopped().await;
            LoadOutcome::ended(LoadStatus::Stopped { by }, started)
        })
    }
}

/// Whole nanoseconds of a duration; 584 years and more are the largest number.
pub(crate) fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
