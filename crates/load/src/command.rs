//! A command of the user as the load.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use profiler_base::stats::nanoseconds;
use profiler_base::stop::{StopReason, StopSignal};
use profiler_recording::loads::{LoadFailure, LoadOutcome, LoadSpec, LoadStatus, TestEnd};

use super::sandbox::{CommandKind, CommandRequest, SandboxOptions, run_once};

/// How long a stopped command may take to end before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Runs a command once, in a session of its own. Standard input is empty; standard output goes to this
/// program's standard error, which keeps a report on standard output clean.
///
/// When the command ends, is stopped (SIGTERM, 2 s of grace, SIGKILL) or this program is killed, all its
/// descendants end too, daemons included.
#[derive(Debug, Clone)]
pub struct CommandLoad {
    request: CommandRequest,
    sandbox: SandboxOptions,
}

impl CommandLoad {
    /// The command `program` with `args`; a name without `/` is searched for in `PATH`. It always has a temporary folder of
    /// its own.
    pub fn new(
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = OsString>,
        sandbox: SandboxOptions,
    ) -> Self {
        let request = CommandRequest {
            program: program.into(),
            args: args.into_iter().collect(),
            env: Vec::new(),
            timeout: None,
            grace: sandbox.grace.unwrap_or(GRACE),
        };
        Self { request, sandbox }
    }

    pub(super) fn describe(&self) -> LoadSpec {
        let argv = std::iter::once(&self.request.program).chain(&self.request.args);
        LoadSpec::Command { argv: argv.map(|arg| arg.to_string_lossy().into_owned()).collect() }
    }

    /// Runs it until it ends, or until `stop`.
    pub(super) async fn run(&self, stop: &StopSignal) -> Result<LoadOutcome, LoadFailure> {
        let started = Instant::now();
        let ended = run_once(&self.sandbox, CommandKind::Plain, true, &self.request, stop).await?;
        let name = format!("`{}`", self.request.program.display());
        let killed = ended.check_killed(&name);
        let status = match ended.end {
            TestEnd::Stopped | TestEnd::TimedOut => {
                LoadStatus::Stopped { by: stop.reason().unwrap_or(StopReason::Interrupted) }
            }
            TestEnd::Exit(0) => LoadStatus::Completed,
            TestEnd::Exit(code) => LoadStatus::Failed(LoadFailure::ExitCode { code }),
            TestEnd::Signal(number) => {
                let name = Signal::try_from(number).map_or("a real-time signal", Signal::as_str);
                LoadStatus::Failed(LoadFailure::Signal { number, name: name.to_owned() })
            }
            TestEnd::NotStarted(why) => {
                let text = format!("command {name}: {why}");
                LoadStatus::Failed(LoadFailure::CouldNotStart { text })
            }
        };
        let elapsed_ns = match status {
            LoadStatus::Stopped { .. } => nanoseconds(started.elapsed()),
            _ => nanoseconds(ended.elapsed),
        };
        let status = killed
            .map_or_else(|text| LoadStatus::Failed(LoadFailure::BrokeOff { text }), |()| status);
        let outcome = LoadOutcome::ended(status, started);
        Ok(LoadOutcome { elapsed_ns, left: ended.left, ..outcome })
    }
}
