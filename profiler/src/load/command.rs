//! A command of the user as the load.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::run::{Load, Running};
use super::sandbox::{
    Exit, ProfilerProgram, SandboxOptions, SupervisedCommand, SupervisorMessage, SupervisorReport,
};
use crate::recording::loads::{LoadFailure, LoadOutcome, LoadSpec, LoadStatus};
use crate::stats::nanoseconds;
use crate::stop::StopSignal;

/// How long a stopped command may take to end before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Runs a command once, in a session of its own. Standard input is empty; standard output goes to this
/// program's standard error, which keeps a report on standard output clean.
///
/// When the command ends, is stopped (SIGTERM, 2 s of grace, SIGKILL) or this program is killed, all its
/// descendants end too, daemons included.
#[derive(Debug, Clone)]
pub struct CommandLoad {
    command: SupervisedCommand,
}

impl CommandLoad {
    /// The command `program` with `args`; a name without `/` is searched for in `PATH`.
    #[must_use]
    pub fn new(program: impl Into<OsString>, args: impl IntoIterator<Item = OsString>) -> Self {
        let command = SupervisedCommand {
            program: program.into(),
            args: args.into_iter().collect(),
            grace: GRACE,
            profiler: ProfilerProgram::this(),
            sandbox: SandboxOptions::default(),
            with_temp_folder: true,
            writes_messages: false,
        };
        Self { command }
    }

    /// Sets the time between SIGTERM and SIGKILL.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.command.grace = grace;
        self
    }

    /// Sets the program that supervises the command.
    #[must_use]
    pub fn profiler(mut self, profiler: ProfilerProgram) -> Self {
        self.command.profiler = profiler;
        self
    }

    /// Sets user and limits of the command. It always has a temporary folder of its own.
    #[must_use]
    pub fn sandbox(mut self, sandbox: SandboxOptions) -> Self {
        self.command.sandbox = sandbox;
        self
    }

    async fn run(self, stop: StopSignal) -> LoadOutcome {
        let started = Instant::now();
        let report = match self.command.run(&stop).await {
            Ok(report) => report,
            Err(failure) => return LoadOutcome::ended(LoadStatus::Failed(failure), started),
        };
        let mut outcome = LoadOutcome::ended(self.status(&report), started);
        if let Some(ended) = report.ended_after {
            outcome.elapsed_ns = nanoseconds(ended);
        }
        outcome
    }

    fn status(&self, report: &SupervisorReport) -> LoadStatus {
        let name = self.command.program.to_string_lossy();
        let broke_off = |text| LoadStatus::Failed(LoadFailure::BrokeOff { text });
        if !report.unkillable.is_empty() {
            let pids: Vec<String> = report.unkillable.iter().map(i32::to_string).collect();
            let pids = pids.join(", ");
            return broke_off(format!("processes {pids} of `{name}` did not end after SIGKILL"));
        }
        match (&report.end, report.stopped_by) {
            (Some(SupervisorMessage::NotStarted(errno)), _) => {
                let text = why_not_started(&name, *errno);
                LoadStatus::Failed(LoadFailure::CouldNotStart { text })
            }
            (Some(SupervisorMessage::Error(text)), _) => {
                broke_off(format!("the supervisor of `{name}`: {text}"))
            }
            (_, Some(by)) => LoadStatus::Stopped { by },
            (Some(SupervisorMessage::Ended(Exit::Code(0))), None) => LoadStatus::Completed,
            (Some(SupervisorMessage::Ended(Exit::Code(code))), None) => {
                LoadStatus::Failed(LoadFailure::ExitCode { code: *code })
            }
            (Some(SupervisorMessage::Ended(Exit::Signal(number))), None) => {
                let (number, name) = (*number, signal_name(*number));
                LoadStatus::Failed(LoadFailure::Signal { number, name })
            }
            (
                Some(SupervisorMessage::Outcome(_) | SupervisorMessage::Unkillable(_)) | None,
                None,
            ) => broke_off(format!(
                "the supervisor of `{name}` ended without a report; was it killed?"
            )),
        }
    }
}

impl Load for CommandLoad {
    fn describe(&self) -> LoadSpec {
        let argv = std::iter::once(&self.command.program).chain(&self.command.args);
        LoadSpec::Command { argv: argv.map(|arg| arg.to_string_lossy().into_owned()).collect() }
    }

    fn run(self: Box<Self>, stop: StopSignal) -> Running {
        Box::pin((*self).run(stop))
    }
}

/// Why a command could not be executed, and what to do.
fn why_not_started(name: &str, errno: i32) -> String {
    let errno = Errno::from_raw(errno);
    let remedy = match errno {
        Errno::ENOENT if name.contains('/') => {
            "check the path, and the interpreter in the first line if it is a script"
        }
        Errno::ENOENT => "check the spelling and PATH, or give the full path",
        Errno::EACCES => {
            "is it executable (chmod +x), and can its folder be searched by the load's user?"
        }
        _ => "try the same command in a shell",
    };
    format!("command `{name}`: {} ({errno:?}): {remedy}", errno.desc())
}

fn signal_name(number: i32) -> String {
    match Signal::try_from(number) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => "a real-time signal".to_owned(),
    }
}
