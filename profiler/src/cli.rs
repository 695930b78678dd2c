//! The command line.

pub mod bisect;
pub mod compare;
pub mod explain;
pub mod gate;
pub mod kernels;
pub mod lab;
pub mod merge;
pub mod profiles;
pub mod report;
pub mod serve;
pub mod shell;
pub mod slope;

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};

use profiler_load::BuiltinKind;
use profiler_recording::{Backend, Clock};
use profiler_run::args::{AgentArgs, GuestArgs, PrepareArgs, RunArgs, SUBJECT, TaxArgs};
use profiler_run::args::{by_name, length, one_of_these, percent};

/// Latency profiler for the hook handlers of kernel modules.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 success, 1 internal error, 2 wrong usage, 3 this machine cannot measure,
4 module or handler not found, 5 the load failed, 6 no handler had a hit, 7 bad input file,
8 output not writable, 9 fewer hits than the load profile requires, 10 the gate failed,
11 inconclusive, 12 not comparable, 13 too few runs, 14 more losses than --max-loss allows,
15 the VM of a lab failed, 16 the driver was replaced or unloaded during the run,
129 its terminal was closed, 130 interrupted (Ctrl-C), 143 terminated. With 5, 6, 9, 14, 15,
16, 129, 130 and 143 what was measured has been reported and saved.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure handlers under a load, and print a table of their latencies.
    Run(Box<RunArgs>),
    /// Run as a daemon that measures handlers continuously, per module build.
    Serve(serve::ServeArgs),
    /// Have the daemon take its probes off a module, so that it can be unloaded.
    Release(serve::ReleaseArgs),
    /// Show what the daemon does.
    Status(serve::StatusArgs),
    /// Print a recording as a table, or write it in another format.
    Report(report::ReportArgs),
    /// Merge recordings into one: the exact sum of their histograms and losses.
    Merge(merge::MergeArgs),
    /// Show what differs between runs of a baseline and of a candidate.
    Compare(compare::CompareArgs),
    /// Decide whether a candidate is slower than it may be; the exit code is the decision.
    Gate(Box<gate::GateArgs>),
    /// Find the first commit of a driver that made a handler slower; continues after a stop.
    Bisect(bisect::BisectArgs),
    /// Say where the instructions of handlers go, and what differs between two builds.
    Explain(explain::ExplainArgs),
    /// Make a recording of latencies that another tool recorded, and print its table.
    #[command(subcommand)]
    Import(ImportSource),
    /// Measure what the probes themselves add to each call of a handler on this machine.
    Cost(CostArgs),
    /// Print the completions for a shell.
    Completions(shell::CompletionsArgs),
    /// Print the program's man page, or write all pages to a folder.
    Man(shell::ManArgs),
    /// Check what this machine can measure, and what to do where it cannot.
    Doctor(DoctorArgs),
    /// List functions with their addresses, and whether they can be traced.
    List(ListArgs),
    /// Give a driver's .ko file the BTF that probes need, before it is loaded.
    Prepare(PrepareArgs),
    /// List and check load profiles: which handlers to measure, and under which load.
    Profiles(profiles::ProfilesArgs),
    /// Measure a driver in a VM, under virtual time: figures that repeat on any machine.
    Lab(Box<lab::LabArgs>),
    /// Show what operations take more with drivers or agents than without them, beside each other.
    Tax(TaxArgs),
    /// Show what handlers take for each folder, byte, descriptor or process that they walk over, and judge a change by it.
    Slope(slope::SlopeArgs),
    /// Fetch stock Debian kernels for labs, or add those of other distributions; list and remove them.
    #[command(subcommand)]
    Kernels(kernels::KernelsAction),
    /// Restore tracefs after a killed profiler, as the next start of one does: for a service's `ExecStopPost=`.
    #[command(hide = true)]
    Restore,
    /// The first process of a lab's guest.
    #[command(name = "__lab-guest", hide = true)]
    LabGuest,
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  profiler doctor
  # can these handlers of a loaded driver be measured, and if not, what is missing?
  profiler doctor --module hids_driver --handler 'bind_*'";

/// Arguments of `profiler doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    /// Kernel module to measure.
    #[arg(long, short)]
    pub module: Option<String>,
    /// Functions to check, by name or glob (repeatable).
    #[arg(
        long = "handler",
        short = 'H',
        value_name = "NAME|GLOB",
        default_value = "*_handler",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub handlers: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

const LIST_EXAMPLES: &str = "\
Examples:
  profiler list --module hids_driver '*_handler'
  # functions of the kernel itself, for a script
  profiler list --json 'tcp_v4_*'
  # what a driver registers when it is loaded: kprobes, tracepoints and other hooks; in a VM
  profiler list --module hids_driver.ko --kernel 6.1
  # where the BPF programs of an agent are attached
  profiler list --agent ./agent --kernel 6.1";

/// Arguments of `profiler list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {
    /// Kernel module that holds the functions; without it those of the kernel image. Of a file ending in
    /// `.ko` the hooks are listed that it registers when it is loaded, in a VM; with --agent alone those of its BPF programs.
    #[arg(long, short)]
    pub module: Option<String>,
    /// Functions of the loaded BPF programs, as `profiler run --bpf-prog` names them.
    #[arg(long, conflicts_with_all = ["module", "kernel", "agent"])]
    pub bpf_prog: bool,
    /// Kernel to load the file on (repeatable) [default: the one that it was built for].
    #[arg(long, value_name = "VMLINUZ|FOLDER|VERSION")]
    pub kernel: Vec<String>,
    /// Parameters of the module, as insmod takes them.
    #[arg(long, value_name = "PARAMS", default_value = "", hide_default_value = true)]
    pub module_params: String,
    /// What uses the driver.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Names or globs; a name in the source also finds the compiler's variants of the function. Of hooks:
    /// of a handler or of the place.
    #[arg(value_name = "PATTERN")]
    pub patterns: Vec<glob::Pattern>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Tools whose recordings are read.
#[derive(Debug, Subcommand)]
pub enum ImportSource {
    /// function_graph text: what `trace-cmd report` prints, or ftrace's `trace` and `trace_pipe`.
    TraceCmd(TraceCmdArgs),
}

const TRACE_CMD_EXAMPLES: &str = "\
Examples:
  # a file with the output of trace-cmd report
  profiler import trace-cmd bind_entry_handler.txt
  # straight from trace.dat
  trace-cmd report -i trace.dat | profiler import trace-cmd -";

/// Arguments of `profiler import trace-cmd`.
#[derive(Debug, Args)]
#[command(after_help = TRACE_CMD_EXAMPLES)]
pub struct TraceCmdArgs {
    /// The text (`-` is standard input).
    pub file: PathBuf,
    /// Write the recording to this file (`-` is standard output): `report`, `compare` and `merge` read it.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

const COST_EXAMPLES: &str = "\
Examples:
  profiler cost --module hids_driver --handler connect_syscall_entry_handler --builtin connect";

/// Arguments of `profiler cost`.
#[derive(Debug, Args)]
#[command(after_help = COST_EXAMPLES)]
pub struct CostArgs {
    /// Kernel module that holds the handler; without it, the handler is a function of the kernel image.
    #[arg(long, short)]
    pub module: Option<String>,
    /// The handler.
    #[arg(long, short = 'H', value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub handler: String,
    /// Built-in load that calls it.
    #[arg(long, value_name = "KIND", value_parser = by_name::<BuiltinKind>())]
    pub builtin: BuiltinKind,
    /// Backend whose cost is measured: see `profiler run --help`.
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// Operations in each measurement.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: u64,
    /// Rounds of measurements; medians over them are printed.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// What the machine's clock measures: see `profiler run --help`.
    #[arg(long, value_parser = by_name::<Clock>(), default_value_t = Clock::Wall)]
    pub clock: Clock,
    /// Write the figures as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_missing_is_asked_for_with_its_alternatives() {
        for (line, named) in [
            ("run", &["--handler", "--profile", "--no-probe"][..]),
            ("lab", &["--module", "--baseline", "--builtin", "--profile"]),
            ("explain", &["FILE", "--live"]),
            ("serve", &["--config"]),
        ] {
            let error = Cli::try_parse_from(["profiler", line]).unwrap_err().to_string();
            let said = error.split("Usage").next().unwrap_or_default();
            assert!(named.iter().all(|name| said.contains(name)), "{error}");
        }
    }

    #[test]
    fn what_takes_time_takes_some() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        for option in ["--duration 0s", "--ltp-timeout 0s"] {
            let error = parse(&format!("profiler run -H x {option}")).unwrap_err().to_string();
            assert!(error.contains("such as 10s"), "{error}");
        }
    }

    #[test]
    fn a_command_and_a_builtin_load_exclude_each_other() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        assert!(parse("profiler run -H x --builtin open -- true").is_err());
        assert!(parse("profiler run -H x --rate 5/s").is_err());
        assert!(parse("profiler run").is_err());
        assert!(parse("profiler run -H x --builtin open,bind --rate 5/s").is_ok());
        assert!(parse("profiler run -H x -- sh -c true").is_ok());
    }
}
