//! A command of the user as the load.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::confine::Confinement;
use super::guard::Message;
use super::guarded::{Guarded, Told};
use super::{
    HelperProgram, Load, LoadFailure, LoadOutcome, LoadSpec, LoadStatus, Running, StopReason,
    StopSignal, nanoseconds,
};

/// How long a stopped command may take to end before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Runs a command once, in a session of its own: standard input is empty, standard output goes to
/// this program's standard error, so that a report on standard output stays clean.
///
/// When the command ends, is stopped (SIGTERM, 2 s of grace, SIGKILL), or this program is killed, all that
/// it started ends with it, daemons included.
#[derive(Debug, Clone)]
pub struct CommandLoad {
    program: OsString,
    args: Vec<OsString>,
    grace: Duration,
    helper: HelperProgram,
    confinement: Confinement,
}

impl CommandLoad {
    /// The command `program` with `args`; a name without `/` is looked up in `PATH`.
    #[must_use]
    pub fn new(program: impl Into<OsString>, args: impl IntoIterator<Item = OsString>) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().collect(),
            grace: GRACE,
            helper: HelperProgram::this_program(),
            confinement: Confinement::default(),
        }
    }

    /// Sets the time between SIGTERM and SIGKILL.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the program that guards the command.
    #[must_use]
    pub fn helper(mut self, helper: HelperProgram) -> Self {
        self.helper = helper;
        self
    }

    /// Sets what the command is kept to; by default nothing. It always has a folder of its own for
    /// temporary files.
    #[must_use]
    pub fn confine(mut self, confinement: Confinement) -> Self {
        self.confinement = confinement;
        self
    }

    async fn run(self, stop: StopSignal) -> LoadOutcome {
        let started = Instant::now();
        let guarded = Guarded {
            program: self.program.clone(),
            args: self.args.clone(),
            grace: self.grace,
            helper: self.helper.clone(),
            confinement: self.confinement.clone(),
            with_scratch: true,
            reports: false,
        };
        let told = match guarded.run(&stop).await {
            Ok(told) => told,
            Err(failure) => return LoadOutcome::ended(LoadStatus::Failed(failure), started),
        };
        let status = self.status(&told, told.stopped_by);
        let mut outcome = LoadOutcome::ended(status, started);
        if let Some(ended) = told.ended_after {
            outcome.elapsed_ns = nanoseconds(ended);
        }
        outcome
    }

    fn status(&self, told: &Told, stopped_by: Option<StopReason>) -> LoadStatus {
        let name = self.program.to_string_lossy();
        if let Some(pids) = &told.left {
            let pids = pids.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
            let text = format!("processes {pids} of `{name}` did not end after SIGKILL");
            return LoadStatus::Failed(LoadFailure::BrokeOff { text });
        }
        match (&told.end, stopped_by) {
            (Some(Message::NotStarted(errno)), _) => {
                LoadStatus::Failed(LoadFailure::CouldNotStart { text: why_not(&name, *errno) })
            }
            (Some(Message::Fault(text)), _) => {
                let text = format!("the guard of `{name}`: {text}");
                LoadStatus::Failed(LoadFailure::BrokeOff { text })
            }
            (_, Some(by)) => LoadStatus::Stopped { by },
            (Some(Message::Exit(0)), None) => LoadStatus::Completed,
            (Some(Message::Exit(code)), None) => {
                LoadStatus::Failed(LoadFailure::ExitCode { code: *code })
            }
            (Some(Message::Signal(number)), None) => LoadStatus::Failed(LoadFailure::Signal {
                number: *number,
                name: signal_name(*number),
            }),
            (Some(Message::Outcome(_)) | None, None)
            | (Some(Message::Started(_) | Message::Left(_)), None) => {
                let text = format!("the guard of `{name}` ended without a word; was it killed?");
                LoadStatus::Failed(LoadFailure::BrokeOff { text })
            }
        }
    }
}

impl Load for CommandLoad {
    fn describe(&self) -> LoadSpec {
        let argv = std::iter::once(&self.program).chain(&self.args);
        LoadSpec::Command { argv: argv.map(|arg| arg.to_string_lossy().into_owned()).collect() }
    }

    fn run(self: Box<Self>, stop: StopSignal) -> Running {
        Box::pin((*self).run(stop))
    }
}

/// Why a command could not be executed, and what to do.
fn why_not(name: &str, errno: i32) -> String {
    let errno = Errno::from_raw(errno);
    let remedy = match errno {
        Errno::ENOENT if name.contains('/') => {
            "check the path, and the interpreter in the first line if it is a script"
        }
        Errno::ENOENT => "check the spelling and PATH, or give the full path",
        Errno::EACCES => "is it executable (chmod +x), and may you reach its folder?",
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
