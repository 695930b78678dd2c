//! Arguments of `profiler explain`.

use std::path::PathBuf;

use clap::Args;

use super::{by_name, one_of_these, percent};
use profiler_export::explain::Format;
use profiler_load::BuiltinKind;
use profiler_recording::unlike::What;

const EXAMPLES: &str = "\
Examples:
  # the functions and source lines that a handler's calls consist of
  profiler explain lab.json --handler connect_syscall_handler
  # why a candidate takes longer: what each function and line takes more
  profiler explain base.json candidate.json
  # a flame graph of the difference
  profiler explain base.json candidate.json --handler bind_handler --format folded | inferno-flamegraph > bind.svg
  # without the lab: what a handler calls on this machine, and how long that takes (as root)
  profiler explain --live --module driver --handler connect_syscall_handler --builtin connect";

/// Arguments of `profiler explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = one_of_these("what", &["base", "live"]))]
pub struct ExplainArgs {
    /// JSON file of a run or of a series that `profiler lab --meter exact` wrote (`-` is standard
    /// input); all runs of a series are summed.
    #[arg(value_name = "FILE")]
    pub base: Option<PathBuf>,
    /// A second one: what differs in it is explained.
    #[arg(value_name = "CANDIDATE")]
    pub candidate: Option<PathBuf>,
    /// The only function that is wanted [default: all that were called from outside of the handlers].
    #[arg(long, short = 'H', value_name = "NAME")]
    pub handler: Option<String>,
    /// Levels of calls below the handler that tables show; what is deeper is summed.
    #[arg(long, value_name = "N")]
    pub depth: Option<u32>,
    /// Functions that take, or differ by, less than this of the handler's total are summed in
    /// tables [default: 0.1, and 0 for two files].
    #[arg(long, value_name = "PERCENT", value_parser = super::percent)]
    pub min_share: Option<f64>,
    /// Format [default: by the extension of --output, else table].
    #[arg(long, short, value_parser = by_name::<Format>())]
    pub format: Option<Format>,
    /// Write to this file instead of standard output; an older file is replaced in one step.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Compare although the recordings differ in this: see `profiler compare --help`.
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub allow_different: Vec<What>,
    /// Tracing instead of files.
    #[command(flatten)]
    pub trace: LiveArgs,
}

/// What `profiler explain --live` traces.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tracing this machine")]
pub struct LiveArgs {
    /// Trace a handler and all that it calls, by the kernel's function_graph tracer, while a load calls it:
    /// durations, with the tracer's own cost in them. Every traceable function of the kernel is slower meanwhile.
    #[arg(
        long,
        requires = "handler",
        requires = "builtin",
        conflicts_with_all = ["base", "candidate", "allow_different"]
    )]
    pub live: bool,
    /// Kernel module that holds the handler; without it, it is a function of the kernel image.
    #[arg(long, short, requires = "live")]
    pub module: Option<String>,
    /// Built-in load that calls it.
    #[arg(long, requires = "live", value_name = "KIND", value_parser = super::by_name::<BuiltinKind>())]
    pub builtin: Option<BuiltinKind>,
    /// Operations of the load.
    #[arg(
        long,
        requires = "live",
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub operations: u64,
    /// Trace buffer on each CPU, in KiB [default: up to 8192, by the memory].
    #[arg(long, requires = "live", value_name = "KIB", value_parser = clap::value_parser!(u64).range(4..=1 << 21))]
    pub trace_buffer: Option<u64>,
    /// Largest share of the calls, in percent, that may be left out of the tree: more ends with exit code 14, after the report.
    #[arg(long, requires = "live", value_name = "PERCENT", default_value_t = 0.1, value_parser = percent)]
    pub max_loss: f64,
    /// Trace the handler even if another tracing program is attached to it, whose time is then counted.
    #[arg(long, requires = "live")]
    pub allow_shared: bool,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::cli::{Cli, Command};

    #[test]
    fn files_or_a_trace_and_what_each_needs() {
        let parsed = |line: &str| {
            let line = format!("profiler explain {line}");
            Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command)
        };
        for wrong in [
            "",
            "--live",
            "--live -H h",
            "--live --builtin connect",
            "--live -H h --builtin connect a.json",
            "--live -H h --builtin connect --operations 0",
            "--live -H h --builtin connect --allow-different clock",
            "a.json --builtin connect",
            "a.json --operations 5",
            "a.json --module m",
            "a.json --max-loss 5",
            "--live -H h --builtin connect --max-loss 101",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        assert!(parsed("a.json b.json -H h").is_ok());
        let Ok(Command::Explain(args)) = parsed("--live -m m -H h --builtin connect") else {
            panic!()
        };
        assert_eq!((args.trace.live, args.trace.operations), (true, 1000));
        assert_eq!((args.base, args.trace.module.as_deref()), (None, Some("m")));
    }
}
