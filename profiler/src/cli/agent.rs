//! Arguments of a program that runs beside a driver in the lab's guest.

use std::path::PathBuf;

use clap::Args;

use crate::error::Failure;
use crate::lab::agent::Agent;

/// A program that uses the driver.
#[derive(Debug, Clone, Default, Args)]
pub struct AgentArgs {
    /// Program that uses the driver, with its arguments, for drivers that hook nothing before: each guest starts it as
    /// root when the driver is loaded, with the libraries that it is linked with, and stops it once it waits. Operations
    /// are counted then.
    #[arg(long, value_name = "COMMAND")]
    pub agent: Option<String>,
    /// File that this program reads, which the guest gets under the same path (repeatable).
    #[arg(long, value_name = "FILE", requires = "agent")]
    pub agent_file: Vec<PathBuf>,
}

impl AgentArgs {
    /// The program, if one is named.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn of(&self) -> Result<Option<Agent>, Failure> {
        self.agent.as_ref().map(|command| Agent::new(command, &self.agent_file)).transpose()
    }
}
