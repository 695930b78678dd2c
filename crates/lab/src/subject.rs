//! What is under test: a driver, or a program that installs hooks.

use std::fmt;
use std::path::{Path, PathBuf};

use profiler_base::error::{Failure, bail};
use profiler_run::args::AgentArgs;

use super::agent::Agent;
use super::installs::Installs;
use crate::prepare;

/// What installs the hooks that are measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A driver, by its file.
    Module(PathBuf),
    /// A program, by what it installs.
    Command(Agent),
}

impl Subject {
    /// Parses a subject: a module's file, or a [command](Agent::given), which needs these `further` files.
    ///
    /// # Errors
    /// If there is no such program, or a file cannot be read.
    pub fn of(given: &Path, further: &[PathBuf]) -> Result<Self, Failure> {
        match given.to_str().and_then(|text| Agent::given(text, further)) {
            Some(agent) => agent.map(Self::Command),
            None => Ok(Self::Module(given.to_owned())),
        }
    }

    /// As [`Self::of`], of one for each kernel.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn all(given: &[PathBuf], further: &[PathBuf]) -> Result<Vec<Self>, Failure> {
        given.iter().map(|given| Self::of(given, further)).collect()
    }

    /// The driver's file.
    #[must_use]
    pub fn module(&self) -> Option<&Path> {
        match self {
            Self::Module(file) => Some(file),
            Self::Command(_) => None,
        }
    }

    /// Refuses parameters that it does not have.
    ///
    /// # Errors
    /// With their names.
    pub fn check_parameters(&self, given: &str) -> Result<(), Failure> {
        match self {
            Self::Module(file) => prepare::check_parameters(file, given),
            Self::Command(_) if given.trim().is_empty() => Ok(()),
            Self::Command(_) => {
                bail!(USAGE, "module parameters are for a driver, and `{self}` is a command")
            }
        }
    }

    /// Whether it is a program.
    #[must_use]
    pub fn is_command(&self) -> bool {
        self.command().is_some()
    }

    /// The program that installs hooks.
    #[must_use]
    pub fn command(&self) -> Option<&Agent> {
        match self {
            Self::Module(_) => None,
            Self::Command(agent) => Some(agent),
        }
    }
}

/// As it was given.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Module(file) => write!(f, "{}", file.display()),
            Self::Command(agent) => write!(f, "{agent}"),
        }
    }
}

/// The program that is named beside subjects, if one is; some of them may be commands, which need files, too.
///
/// # Errors
/// If it cannot be started, or files are for none.
pub fn agent_beside(args: &AgentArgs, has_command: bool) -> Result<Option<Agent>, Failure> {
    let (agent, files) = (&args.agent, &args.agent_file);
    if let (Some(file), None, false) = (files.first(), agent, has_command) {
        bail!(USAGE, "--agent-file {} is for --agent or `run: COMMAND`", file.display());
    }
    let Some(given) = agent else { return Ok(None) };
    Agent::given(given, files).unwrap_or_else(|| Agent::new(given, files)).map(Some)
}

/// A subject on a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// What is installed: of a driver a copy of its file.
    pub subject: Subject,
    /// As the user gave it.
    pub given: String,
    /// The module's name once it is loaded, or that of [what a command installs](Installs::module).
    pub name: String,
    /// Parameters, as insmod takes them.
    pub params: String,
}

/// What is behind the kind of a subject that is no module's file.
#[must_use]
pub fn command(given: &Path) -> Option<&str> {
    Installs::given(given.to_str()?).map(|(_, rest)| rest)
}
