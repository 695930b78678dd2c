//! A built-in load in a process of its own: another user, its own session, folder and limits; its costs
//! are told apart from the profiler's, and should it hang, it can be killed.

use std::ffi::OsString;
use std::io::Write as _;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::builtin::BuiltinKind;
use super::confine::{Confinement, LoadUser};
use super::guarded::Guarded;
use super::helper::Role;
use super::{
    BuiltinLoad, Load, LoadFailure, LoadOutcome, LoadSpec, LoadStatus, OwnCalls, Rate, Running,
    StopReason, StopSignal,
};

/// A load of the slowest operation ends within a second of being told; one that does not is killed.
const GRACE: Duration = Duration::from_secs(10);

/// What the process is told to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Task {
    kind: BuiltinKind,
    workers: u32,
    rate: Option<Rate>,
    operations: Option<u64>,
    pin: bool,
    /// Time of the monotonic clock, which all processes share, in nanoseconds.
    measured_from_ns: Option<u64>,
}

/// A [`BuiltinLoad`] in a process of its own. As root it runs as `nobody`, unless another user is asked
/// for or the operation needs root.
#[derive(Debug, Clone)]
pub struct HostedLoad {
    load: BuiltinLoad,
    confinement: Confinement,
    grace: Duration,
}

impl HostedLoad {
    /// Hosts `load`, kept to `confinement`.
    #[must_use]
    pub fn new(load: BuiltinLoad, mut confinement: Confinement) -> Self {
        if confinement.user.is_none()
            && nix::unistd::geteuid().is_root()
            && !load.kind().needs_root()
        {
            confinement.user = Some(LoadUser::nobody());
        }
        confinement.directory = confinement.directory.or_else(|| load.own_directory());
        Self { load, confinement, grace: GRACE }
    }

    /// Sets how long it may take to end before it is killed.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    fn guarded(&self) -> Result<Guarded, LoadFailure> {
        let task = serde_json::to_string(&self.load.task())
            .map_err(|error| LoadFailure::CouldNotStart { text: format!("its task: {error}") })?;
        let helper = self.load.helper_program().clone();
        Ok(Guarded {
            program: helper.path().as_os_str().to_owned(),
            args: vec![OsString::from(Role::Host.argument()), OsString::from(task)],
            grace: self.grace,
            helper,
            confinement: self.confinement.clone(),
            with_scratch: self.load.kind().needs_directory(),
            reports: true,
        })
    }

    async fn run(self, stop: StopSignal) -> LoadOutcome {
        let started = Instant::now();
        let name = self.load.kind();
        let failed = |failure| LoadOutcome::ended(LoadStatus::Failed(failure), started);
        let told = match self.guarded() {
            Ok(guarded) => guarded.run(&stop).await,
            Err(failure) => return failed(failure),
        };
        let told = match told {
            Ok(told) => told,
            Err(LoadFailure::CouldNotStart { text }) => {
                let text = format!("built-in `{name}`: {text}");
                return failed(LoadFailure::CouldNotStart { text });
            }
            Err(failure) => return failed(failure),
        };
        let broke_off = |text| failed(LoadFailure::BrokeOff { text });
        if let Some(pids) = &told.left {
            return broke_off(format!(
                "built-in `{name}`: processes {pids:?} did not end after SIGKILL"
            ));
        }
        let Some(outcome) = told.outcome else {
            return broke_off(match told.stopped_by {
                Some(_) => format!(
                    "built-in `{name}` hung: it had not ended {:.1} s after it was told to, and was killed",
                    self.grace.as_secs_f64()
                ),
                None => format!(
                    "the process of built-in `{name}` ended without a word ({:?}); was it killed, or out of \
                     memory?",
                    told.end
                ),
            });
        };
        let mut outcome = *outcome;
        // The guard, and the process itself.
        if let Some(calls) = &mut outcome.calls {
            *calls += OwnCalls { execve: 2, ..OwnCalls::default() };
        }
        if let LoadStatus::Stopped { by } = &mut outcome.status {
            // The process knows only that it was told.
            *by = told.stopped_by.unwrap_or(StopReason::Interrupted);
        }
        outcome
    }
}

impl Load for HostedLoad {
    fn describe(&self) -> LoadSpec {
        let mut spec = self.load.describe();
        if let LoadSpec::Builtin { user, .. } = &mut spec {
            *user = self.confinement.user.as_ref().map(|user| user.name.clone());
        }
        spec
    }

    fn run(self: Box<Self>, stop: StopSignal) -> Running {
        Box::pin((*self).run(stop))
    }
}

impl BuiltinLoad {
    fn task(&self) -> Task {
        let measured_from_ns = self.measured_from.map(|from| {
            let left = from.saturating_duration_since(Instant::now());
            monotonic_ns().saturating_add(super::nanoseconds(left))
        });
        Task {
            kind: self.kind(),
            workers: self.workers,
            rate: self.rate,
            operations: self.operations,
            pin: self.pin,
            measured_from_ns,
        }
    }
}

fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| super::nanoseconds(Duration::from(now)))
}

/// The process's `main`: does its task, ends early on SIGTERM, and tells the outcome in one line.
pub(super) fn main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let task = args.next().and_then(|text| serde_json::from_str::<Task>(text.to_str()?).ok());
    let Some(task) = task else { return 2 };
    // Blocked before any thread is there, so that the one below alone hears it.
    let mut heard = SigSet::empty();
    heard.add(Signal::SIGTERM);
    if heard.thread_block().is_err() {
        return 1;
    }
    let stop = StopSignal::new();
    let told = stop.clone();
    let listener = std::thread::Builder::new().name("load-stop".to_owned()).spawn(move || {
        if heard.wait().is_ok() {
            told.stop(StopReason::Duration);
        }
    });
    if listener.is_err() {
        return 1;
    }
    let measured_from = task
        .measured_from_ns
        .map(|from| Instant::now() + Duration::from_nanos(from.saturating_sub(monotonic_ns())));
    let load = BuiltinLoad::new(task.kind)
        .workers(task.workers)
        .rate(task.rate)
        .operations(task.operations)
        .pin(task.pin)
        .measured_from(measured_from);
    let outcome = load.run_alone(&stop);
    let Ok(outcome) = serde_json::to_string(&outcome) else { return 1 };
    let mut out = std::io::stdout().lock();
    match writeln!(out, "outcome {outcome}").and_then(|()| out.flush()) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}
