//! Arguments of `profiler tax`.

use std::path::PathBuf;

use clap::Args;

use super::{BuiltinKind, GuestArgs};

const EXAMPLES: &str = "\
Examples:
  # a driver beside two agents of BPF programs, under the usual loads
  profiler tax --kernel 6.1 --with hids_driver.ko --with 'run: opensnoop' --with 'run: execsnoop'
  # a driver with and without a hook, of two operations
  profiler tax --kernel 6.1 --with 'hids_driver.ko EXIT_HOOK=0' --with 'hids_driver.ko EXIT_HOOK=1' --builtin fork,exit
  # audit rules, and a program as the load
  profiler tax --kernel 6.1 --with 'audit: /etc/audit/audit.rules' -- dd if=/dev/zero of=/dev/null count=1000
  # any program as the load
  profiler tax --kernel 6.1 --with hids_driver.ko --agent-file /etc/services -- sort /etc/services";

/// Arguments of `profiler tax`.
#[derive(Debug, Default, Args)]
#[command(after_help = EXAMPLES)]
pub struct TaxArgs {
    /// Kernel to boot, as for `profiler lab`.
    #[arg(long, value_name = "FILE|FOLDER|VERSION")]
    pub kernel: String,
    /// What is installed (repeatable: a column each): a driver's file, with parameters as insmod takes them, a file of BPF
    /// programs, a program whose BPF programs are measured, as `run: COMMAND`, a file of audit rules, as `audit: RULES`, or what
    /// the kernel boots with, as `kernel: ARGUMENTS`.
    #[arg(
        long,
        value_name = "FILE.ko [NAME=VALUE ...]|FILE.bpf.o|run: COMMAND|audit: RULES|kernel: ARGUMENTS",
        required = true
    )]
    pub with: Vec<String>,
    /// Built-in load, such as connect (repeatable, or several with commas: one after the other) [default: the general ones,
    /// connect and execve].
    #[arg(long, value_delimiter = ',', value_name = "KIND")]
    pub builtin: Vec<BuiltinKind>,
    /// Write everything as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// What runs in the guests beside that, and what is kept and said of them.
    #[command(flatten)]
    pub guests: GuestArgs,
    /// Program of which each run is an operation, as root, with the libraries that it is linked with and each --agent-file. Of
    /// built-in loads only those of --builtin are made beside it.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
