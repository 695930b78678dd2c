//! Arguments of a program that runs in the lab's guest.

use std::path::PathBuf;

use clap::Args;

use crate::error::{Failure, exit};
use crate::lab::agent::Agent;
use crate::lab::subject;

/// A program that uses the driver, or that is measured itself.
#[derive(Debug, Clone, Default, Args)]
pub struct AgentArgs {
    /// Program with its arguments, which each guest starts as root with the libraries that it is linked with, and stops once it
    /// waits; then operations are counted. With a driver it runs when that is loaded, for drivers that hook nothing before. Without
    /// a driver its BPF programs are measured; then it may be a `bpf: FILE.bpf.o`,
    /// `audit: RULES` or `kernel: ARGUMENTS`, too.
    #[arg(long, value_name = "COMMAND")]
    pub agent: Option<String>,
    /// File that this program, or a `run: COMMAND`, reads or starts; the guest gets it under the same path (repeatable).
    #[arg(long, value_name = "FILE")]
    pub agent_file: Vec<PathBuf>,
}

impl AgentArgs {
    /// The program, if one is named beside these subjects.
    ///
    /// # Errors
    /// If it cannot be started, or files are for none.
    pub fn beside(&self, subjects: &[&[PathBuf]]) -> Result<Option<Agent>, Failure> {
        let is_command = subjects.concat().iter().any(|given| subject::command(given).is_some());
        if let (Some(file), None, false) = (self.agent_file.first(), &self.agent, is_command) {
            let text = format!("--agent-file {} is for --agent or `run: COMMAND`", file.display());
            return Err(Failure::new(exit::USAGE, text));
        }
        let agent = self.agent.as_ref().map(|given| {
            Agent::given(given, &self.agent_file)
                .unwrap_or_else(|| Agent::new(given, &self.agent_file))
        });
        agent.transpose()
    }
}
