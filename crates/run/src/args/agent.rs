//! Arguments of what measures in the lab's guests.

use std::path::PathBuf;

use clap::Args;

/// How help names a build to measure.
pub const SUBJECT: &str = "FILE.ko|FILE.bpf.o|run: COMMAND|audit: RULES|kernel: ARGUMENTS";

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

/// What all that measures in guests takes.
#[derive(Debug, Clone, Default, Args)]
pub struct GuestArgs {
    /// What uses the driver.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Keep the kernel's messages of each guest in this folder.
    #[arg(long, value_name = "FOLDER")]
    pub logs: Option<PathBuf>,
    /// No progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
}
