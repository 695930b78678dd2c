//! A built-in load in a sandboxed process: with its own user, session, folder and limits. Its costs are
//! separate from the profiler's, and if it hangs it can be killed.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

use profiler_base::stop::{StopReason, StopSignal};
use profiler_recording::loads::{LoadFailure, LoadOutcome, LoadSpec, LoadStatus, TestEnd};

use super::builtin::{BuiltinLoad, Remover, monotonic_now};
use super::sandbox::{
    CommandKind, CommandRequest, LoadUser, Role, SandboxOptions, SupervisorMessage, run_once,
};

/// Even the slowest operation ends within a second of SIGTERM; a load that does not is killed.
const GRACE: Duration = Duration::from_secs(10);

/// A [`BuiltinLoad`] in a process of its own. As root it runs as `nobody`, unless another user is asked
/// for or the operation needs root.
#[derive(Debug, Clone)]
pub struct SandboxedLoad {
    load: BuiltinLoad,
    sandbox: SandboxOptions,
}

impl SandboxedLoad {
    /// Runs `load` in a sandbox.
    pub fn new(load: BuiltinLoad, mut sandbox: SandboxOptions) -> Self {
        if sandbox.user.is_none() && nix::unistd::geteuid().is_root() && !load.kind.needs_root() {
            sandbox.user = Some(LoadUser::nobody());
        }
        sandbox.directory = sandbox.directory.or_else(|| load.directory.clone());
        sandbox.profiler = load.profiler.clone();
        Self { load, sandbox }
    }

    /// Begins a warm-up of this length, which is left out of latencies.
    pub fn warm_up(&mut self, length: Duration) {
        self.load.measured_from = (!length.is_zero()).then(|| monotonic_now() + length);
    }

    pub(super) fn describe(&self) -> LoadSpec {
        let mut spec = self.load.describe();
        if let LoadSpec::Builtin { user, .. } = &mut spec {
            *user = self.sandbox.user.as_ref().map(|user| user.name.clone());
        }
        spec
    }

    /// Runs it until its operations are made, or until `stop`.
    pub(super) async fn run(&self, stop: &StopSignal) -> Result<LoadOutcome, LoadFailure> {
        let started = Instant::now();
        let name = format!("built-in `{}`", self.load.kind);
        let task = serde_json::to_string(&self.load)
            .map_err(|error| LoadFailure::CouldNotStart { text: format!("its task: {error}") })?;
        let request = CommandRequest {
            program: self.load.profiler.path().as_os_str().to_owned(),
            args: vec![OsString::from(Role::Load.argument()), OsString::from(task)],
            env: Vec::new(),
            timeout: None,
            grace: self.sandbox.grace.unwrap_or(GRACE),
        };
        let needs_folder = self.load.kind.needs_directory();
        let ended = run_once(&self.sandbox, CommandKind::Builtin, needs_folder, &request, stop);
        let ended = ended.await.map_err(|failure| match failure {
            LoadFailure::CouldNotStart { text } => {
                LoadFailure::CouldNotStart { text: format!("{name}: {text}") }
            }
            other => other,
        })?;
        let killed = ended.check_killed(&name);
        let outcome =
            ended.outcome.ok_or_else(|| without_outcome(&name, &ended.end, request.grace));
        let mut outcome = killed.and(outcome).map_or_else(
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
}

fn without_outcome(name: &str, end: &TestEnd, grace: Duration) -> String {
    if *end == TestEnd::Stopped {
        let seconds = grace.as_secs_f64();
        return format!(
            "{name} hung: it did not end within {seconds:.1} s of SIGTERM and was killed"
        );
    }
    format!(
        "the process of {name} ended without a report ({end:?}); was it killed, or out of memory?"
    )
}

/// The `main` of [`Role::Load`]: runs its task, stops on SIGTERM, and writes the outcome.
pub(super) fn main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let task = args.next().and_then(|json| serde_json::from_str(json.to_str()?).ok());
    let Some::<BuiltinLoad>(mut load) = task else { return 2 };
    let stop = StopSignal::new();
    let of_thread = stop.clone();
    let waiting = std::thread::Builder::new().name("load-stop".to_owned()).spawn(move || {
        // The supervisor has it blocked in all threads, so that this one receives it.
        if SigSet::from(Signal::SIGTERM).wait().is_ok() {
            of_thread.stop(StopReason::Duration);
        }
    });
    if waiting.is_err() {
        return 1;
    }
    // The folder of the sandbox, which its supervisor removes.
    load.directory = Some(std::env::temp_dir());
    load.remover = Remover::Sandbox;
    SupervisorMessage::Outcome(Box::new(load.run(&stop))).send();
    0
}
