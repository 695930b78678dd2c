//! A built-in load in a sandboxed process: with its own user, session, folder and limits. Its costs are
//! separate from the profiler's, and if it hangs it can be killed.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::builtin::BuiltinLoad;
use super::run::{Load, Running};
use super::sandbox::{
    LoadUser, Role, SandboxOptions, SupervisedCommand, SupervisorMessage, SupervisorReport,
};
use crate::recording::loads::{LoadFailure, LoadOutcome, LoadSpec, LoadStatus, OwnCalls};
use crate::stats::nanoseconds;
use crate::stop::{StopReason, StopSignal};

/// Even the slowest operation ends within a second of SIGTERM; a load that does not is killed.
const GRACE: Duration = Duration::from_secs(10);

/// What the process is to do: its argument, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    load: LoadSpec,
    /// Time of the monotonic clock, which all processes share.
    measured_from_ns: Option<u64>,
}

/// A [`BuiltinLoad`] in a process of its own. As root it runs as `nobody`, unless another user is asked
/// for or the operation needs root.
#[derive(Debug, Clone)]
pub struct SandboxedLoad {
    load: BuiltinLoad,
    sandbox: SandboxOptions,
    grace: Duration,
}

impl SandboxedLoad {
    /// Runs `load` in a sandbox.
    #[must_use]
    pub fn new(load: BuiltinLoad, mut sandbox: SandboxOptions) -> Self {
        if sandbox.user.is_none() && nix::unistd::geteuid().is_root() && !load.kind.needs_root() {
            sandbox.user = Some(LoadUser::nobody());
        }
        sandbox.directory = sandbox.directory.or_else(|| load.directory.clone());
        Self { load, sandbox, grace: GRACE }
    }

    /// Sets how long it may take to end before it is killed.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    async fn run(self, stop: StopSignal) -> LoadOutcome {
        let started = Instant::now();
        let name = self.load.kind;
        let ended = match self.command() {
            Ok(command) => command.run(&stop).await,
            Err(text) => Err(LoadFailure::CouldNotStart { text }),
        };
        let outcome = ended.and_then(|report| self.outcome(report));
        outcome.unwrap_or_else(|failure| {
            let failure = match failure {
                LoadFailure::CouldNotStart { text } => {
                    LoadFailure::CouldNotStart { text: format!("built-in `{name}`: {text}") }
                }
                other => other,
            };
            LoadOutcome::ended(LoadStatus::Failed(failure), started)
        })
    }

    fn command(&self) -> Result<SupervisedCommand, String> {
        let measured_from_ns = self.load.measured_from.map(|from| {
            let left = from.saturating_duration_since(Instant::now());
            monotonic_ns().saturating_add(nanoseconds(left))
        });
        let task = Task { load: self.load.describe(), measured_from_ns };
        let task = serde_json::to_string(&task).map_err(|error| format!("its task: {error}"))?;
        let profiler = self.load.profiler.clone();
        Ok(SupervisedCommand {
            program: profiler.path().as_os_str().to_owned(),
            args: vec![OsString::from(Role::Load.argument()), OsString::from(task)],
            grace: self.grace,
            profiler,
            sandbox: self.sandbox.clone(),
            with_temp_folder: self.load.kind.needs_directory(),
            writes_messages: true,
        })
    }

    fn outcome(&self, report: SupervisorReport) -> Result<LoadOutcome, LoadFailure> {
        let name = self.load.kind;
        let broke_off = |text| Err(LoadFailure::BrokeOff { text });
        if !report.unkillable.is_empty() {
            let pids = report.unkillable;
            return broke_off(format!(
                "built-in `{name}`: processes {pids:?} did not end after SIGKILL"
            ));
        }
        let Some(mut outcome) = report.outcome else {
            return broke_off(match report.stopped_by {
                Some(_) => format!(
                    "built-in `{name}` hung: it did not end within {:.1} s of SIGTERM and was killed",
                    self.grace.as_secs_f64()
                ),
                None => format!(
                    "the process of built-in `{name}` ended without a report ({:?}); was it killed, or out \
                     of memory?",
                    report.end
                ),
            });
        };
        // The supervisor, and the process itself.
        if let Some(calls) = &mut outcome.calls {
            *calls += OwnCalls { execve: 2, ..OwnCalls::default() };
        }
        if let LoadStatus::Stopped { by } = &mut outcome.status {
            // The process does not know why it was stopped.
            *by = report.stopped_by.unwrap_or(StopReason::Interrupted);
        }
        Ok(*outcome)
    }
}

impl Load for SandboxedLoad {
    fn describe(&self) -> LoadSpec {
        let mut spec = self.load.describe();
        if let LoadSpec::Builtin { user, .. } = &mut spec {
            *user = self.sandbox.user.as_ref().map(|user| user.name.clone());
        }
        spec
    }

    fn run(self: Box<Self>, stop: StopSignal) -> Running {
        Box::pin((*self).run(stop))
    }
}

fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| nanoseconds(Duration::from(now)))
}

/// The `main` of [`Role::Load`]: runs its task, stops on SIGTERM, and writes the outcome.
pub(super) fn main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let task = args.next().and_then(|json| serde_json::from_str::<Task>(json.to_str()?).ok());
    let Some(Task { load, measured_from_ns }) = task else { return 2 };
    let LoadSpec::Builtin { name, workers, rate_per_s, operations, pin, user: _ } = load else {
        return 2;
    };
    // Blocked before any thread is started, so that only the one below receives it.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    if signals.thread_block().is_err() {
        return 1;
    }
    let stop = StopSignal::new();
    let of_thread = stop.clone();
    let waiting = std::thread::Builder::new().name("load-stop".to_owned()).spawn(move || {
        if signals.wait().is_ok() {
            of_thread.stop(StopReason::Duration);
        }
    });
    if waiting.is_err() {
        return 1;
    }
    let measured_from = measured_from_ns
        .map(|from| Instant::now() + Duration::from_nanos(from.saturating_sub(monotonic_ns())));
    let load = BuiltinLoad::new(name)
        .workers(workers)
        .rate(rate_per_s)
        .operations(operations)
        .pin(pin)
        .measured_from(measured_from);
    let outcome = Box::new(load.run_alone(&stop));
    SupervisorMessage::Outcome(outcome).send().map_or(1, |()| 0)
}
