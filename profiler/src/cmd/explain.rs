//! `profiler explain`: where the instructions or the time of handlers go, and what differs between two builds.

use std::path::PathBuf;

use clap::Args;

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, exit};
use profiler_base::progress::Progress;
use profiler_base::terminal::say;
use profiler_explain::{NamedRuns, explain};
use profiler_export::explain::{ExplainReport, Format, Shown, notes, render};
use profiler_kernel::privileges;
use profiler_load::BuiltinKind;
use profiler_recording::unlike::What;
use profiler_recording::{Backend, Recording};
use profiler_run::args::{RunArgs, by_name, one_of_these, percent};
use profiler_run::{self as run, Measured};
use profiler_verdict::{Run, Sides};

use super::{data_to_stdout, restore_tracefs, sides::read, stdout_width};

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
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub min_share: Option<f64>,
    /// Format [default: by the extension of --output, else table].
    #[arg(long, short, value_parser = by_name::<Format>())]
    pub format: Option<Format>,
    /// Write to this file instead of standard output; an older file is replaced in one step.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Compare although the recordings differ in this: see `profiler compare --help`.
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = by_name::<What>())]
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
    #[arg(long, requires = "live", value_name = "KIND", value_parser = by_name::<BuiltinKind>())]
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

/// Explains: see the [command line](ExplainArgs).
///
/// # Errors
/// If a file is no sound recording, has no call tree or no such handler, the recordings may not be compared, the
/// handler cannot be traced or was not called, or the output cannot be written.
pub fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let output = args.output.as_deref().map(OutputFile::open).transpose()?;
    if args.trace.live {
        return live(args, output);
    }
    let mut recordings = Vec::new();
    for file in args.base.iter().chain(&args.candidate) {
        recordings.push((file.display().to_string(), read(std::slice::from_ref(file))?));
    }
    if let [(_, base), (_, candidate)] = recordings.as_slice() {
        Sides::new(base, candidate, &args.allow_different, false)
            .map_err(|why| Failure::new(exit::NOT_COMPARABLE, why))?;
    }
    let recordings: Vec<NamedRuns<'_>> =
        recordings.iter().map(|runs| runs_of(runs, args.handler.as_deref())).collect();
    deliver(args, output, &recordings, Vec::new())
}

/// The runs that have the handler in their table, if any do: a gate judges a handler under one load, though other loads call it, too.
fn runs_of<'a>((name, runs): &'a (String, Vec<Run>), handler: Option<&str>) -> NamedRuns<'a> {
    let all: Vec<&Recording> = runs.iter().map(|run| &run.recording).collect();
    let mut of_handler = all.clone();
    of_handler.retain(|run| run.handlers.iter().any(|found| Some(&*found.name) == handler));
    let runs = if of_handler.is_empty() { all } else { of_handler };
    NamedRuns { name: name.clone(), runs }
}

/// Traces a handler under a load. What was traced until a signal, or under a load that failed, is shown before
/// that is said.
fn live(args: &ExplainArgs, output: Option<OutputFile>) -> Result<(), Failure> {
    privileges::check()?;
    restore_tracefs();
    let traced = run_args(args.handler.as_deref(), &args.trace);
    let run = run::Run::prepare(&traced)?;
    let Measured { recordings, end } = run.measure(&mut Progress::new(false).drawn(false))?;
    let called = recordings.first().filter(|recording| recording.calls() > 0);
    let (Some(recording), Some(load)) = (called, args.trace.builtin) else {
        for warning in recordings.iter().flat_map(|recording| &recording.warnings) {
            say(&format!("warning: {}", warning.text));
        }
        return end;
    };
    let name = format!("a live trace under the load {load}");
    let runs = NamedRuns { name, runs: vec![recording] };
    deliver(args, output, &[runs], notes(recording))?;
    end
}

fn run_args(handler: Option<&str>, args: &LiveArgs) -> RunArgs {
    RunArgs {
        module: args.module.clone(),
        handlers: handler.map(str::to_owned).into_iter().collect(),
        builtin: Some(args.builtin.into_iter().collect()),
        operations: Some(args.operations),
        max_loss: args.max_loss,
        backend: Some(Backend::FunctionGraph),
        call_tree: true,
        allow_shared: args.allow_shared,
        trace_buffer: args.trace_buffer,
        ..RunArgs::default()
    }
}

/// Explains, and writes what came of it.
fn deliver(
    args: &ExplainArgs,
    output: Option<OutputFile>,
    recordings: &[NamedRuns<'_>],
    mut notes: Vec<String>,
) -> Result<(), Failure> {
    let format = args.format.or_else(|| args.output.as_deref().and_then(Format::of_file));
    let handler = args.handler.as_deref().filter(|_| !args.trace.live);
    let (handlers, more) = explain(recordings, handler)?;
    notes.extend(more);
    let shown = Shown {
        depth: args.depth.map(|depth| depth as usize),
        min_share: args.min_share.unwrap_or(if args.candidate.is_some() { 0.0 } else { 0.1 }),
        width: if output.is_none() { stdout_width() } else { None },
    };
    let report = ExplainReport::new(recordings, handlers, notes);
    let bytes = render(&report, format.unwrap_or(Format::Table), shown);
    match output {
        Some(output) => Ok(output.commit(&bytes)?),
        None => data_to_stdout(&bytes),
    }
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
