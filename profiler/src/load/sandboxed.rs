//! A built-in load in a sandboxed process: with its own user, session, folder and limits. Its costs are
//! separate from the profiler's, and if it hangs it can be killed.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::Mode;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::builtin::{BuiltinLoad, Remover};
use super::run::{Load, Running};
use super::sandbox::{
    CommandKind, CommandRequest, LoadUser, Role, Sandbox, SandboxOptions, SupervisorMessage,
    run_once,
};
use crate::recording::loads::{Ended, LoadFailure, LoadOutcome, LoadSpec, LoadStatus, TestEnd};
use crate::stats::nanoseconds;
use crate::stop::{StopReason, StopSignal};

/// Even the slowest operation ends within a second of SIGTERM; a load that does not is killed.
const GRACE: Duration = Duration::from_secs(10);

/// What the process is to do: its argument, as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    load: BuiltinLoad,
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
    pub fn new(load: BuiltinLoad, mut sandbox: SandboxOptions) -> Self {
        if sandbox.user.is_none() && nix::unistd::geteuid().is_root() && !load.kind.needs_root() {
            sandbox.user = Some(LoadUser::nobody());
        }
        sandbox.directory = sandbox.directory.or_else(|| load.directory.clone());
        Self { load, sandbox, grace: GRACE }
    }

    /// Sets how long it may take to end before it is killed.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    async fn run(self, stop: StopSignal) -> LoadOutcome {
        let started = Instant::now();
        let outcome = self.outcome(&stop, started).await.map_err(|failure| match failure {
            LoadFailure::CouldNotStart { text } => LoadFailure::CouldNotStart {
                text: format!("built-in `{}`: {text}", self.load.kind),
            },
            other => other,
        });
        outcome.unwrap_or_else(|failure| LoadOutcome::ended(LoadStatus::Failed(failure), started))
    }

    async fn outcome(
        &self,
        stop: &StopSignal,
        started: Instant,
    ) -> Result<LoadOutcome, LoadFailure> {
        let could_not_start = |text| LoadFailure::CouldNotStart { text };
        let files = self.load.kind.needs_directory().then_some(Mode::S_IRWXU);
        let sandbox = Sandbox::plan(&self.sandbox, files, false).map_err(could_not_start)?;
        let request = self.request().map_err(could_not_start)?;
        let (ended, outcome) = run_once(&self.load.profiler, sandbox, &request, stop).await?;
        let name = format!("built-in `{}`", self.load.kind);
        let without_outcome = || self.without_outcome(&name, &ended);
        let outcome = ended.check_killed(&name).and_then(|()| outcome.ok_or_else(without_outcome));
        let mut outcome = outcome.map_or_else(
            |text| LoadOutcome::ended(LoadStatus::Failed(LoadFailure::BrokeOff { text }), started),
            |outcome| *outcome,
        );
        outcome.left = ended.left;
        if let LoadStatus::Stopped { by } = &mut outcome.status {
            // The process does not know why it was stopped.
            *by = stop.reason().unwrap_or(StopReason::Interrupted);
        }
        Ok(outcome)
    }

    fn request(&self) -> Result<CommandRequest, String> {
        let measured_from_ns = self.load.measured_from.map(|from| {
            let left = from.saturating_duration_since(Instant::now());
            monotonic_ns().saturating_add(nanoseconds(left))
        });
        let task = Task { load: self.load.clone(), measured_from_ns };
        let task = serde_json::to_string(&task).map_err(|error| format!("its task: {error}"))?;
        Ok(CommandRequest {
            kind: CommandKind::Builtin,
            program: self.load.profiler.path().as_os_str().to_owned(),
            args: vec![OsString::from(Role::Load.argument()), OsString::from(task)],
            env: Vec::new(),
            timeout: None,
            grace: self.grace,
        })
    }

    fn without_outcome(&self, name: &str, ended: &Ended) -> String {
        if ended.end == TestEnd::Stopped {
            let seconds = self.grace.as_secs_f64();
            return format!(
                "{name} hung: it did not end within {seconds:.1} s of SIGTERM and was killed"
            );
        }
        let end = &ended.end;
        format!(
            "the process of {name} ended without a report ({end:?}); was it killed, or out of memory?"
        )
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
    let Some(Task { mut load, measured_from_ns }) = task else { return 2 };
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
    load.measured_from = measured_from_ns
        .map(|from| Instant::now() + Duration::from_nanos(from.saturating_sub(monotonic_ns())));
    // The folder of the sandbox, which its supervisor removes.
    load.directory = Some(std::env::temp_dir());
    load.remover = Remover::Sandbox;
    let outcome = Box::new(load.run_alone(&stop));
    SupervisorMessage::Outcome(outcome).send().map_or(1, |()| 0)
}
