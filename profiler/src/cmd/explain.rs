//! `profiler explain`: where the instructions or the time of handlers go, and what differs between two builds.

use super::{data_to_stdout, restore_tracefs, sides::read, stdout_width};
use crate::cli::explain::{ExplainArgs, LiveArgs};
use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, exit};
use profiler_base::progress::Progress;
use profiler_base::terminal::say;
use profiler_explain::{NamedRuns, explain};
use profiler_export::explain::{ExplainReport, Format, Shown, notes, render};
use profiler_kernel::privileges;
use profiler_recording::{Backend, Recording};
use profiler_run::args::RunArgs;
use profiler_run::{self as run, Measured};
use profiler_verdict::{Run, Sides};

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
