//! `profiler explain`: where the instructions of handlers go, and what differs between two builds.

use super::{report::stdout_width, sides::read, to_stdout};
use crate::atomic_file::OutputFile;
use crate::cli::explain::ExplainArgs;
use crate::error::{Failure, exit};
use crate::explain::{Recording, explain};
use crate::export::explain::{ExplainReport, Format, Shown, render};
use crate::export::verdict::refusal;
use crate::verdict::{Run, Sides};

/// Explains: see the [command line](ExplainArgs).
///
/// # Errors
/// If a file is no sound recording, has no call tree or no such handler, the recordings may not be compared, or the
/// output cannot be written.
pub fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let output = args.output.as_deref().map(OutputFile::open).transpose()?;
    let format = args.format.or_else(|| args.output.as_deref().and_then(Format::of_file));
    let mut recordings = Vec::new();
    for file in std::iter::once(&args.base).chain(&args.candidate) {
        recordings
            .push((file.display().to_string(), read(std::slice::from_ref(file), |_, e| e.into())?));
    }
    if let [(_, base), (_, candidate)] = recordings.as_slice() {
        Sides::new(base, candidate, &args.allow_different, false)
            .map_err(|why| Failure::new(exit::NOT_COMPARABLE, refusal(&why)))?;
    }
    let recordings: Vec<Recording<'_>> = recordings.iter().map(recording).collect();
    let (handlers, notes) = explain(&recordings, args.handler.as_deref())?;
    let shown = Shown {
        depth: args.depth.map_or(usize::MAX, |depth| depth as usize),
        min_share: args.min_share.unwrap_or(if args.candidate.is_some() { 0.0 } else { 0.1 }),
        width: if output.is_none() { stdout_width() } else { None },
    };
    let report = ExplainReport::new(&recordings, handlers, notes);
    let bytes = render(&report, format.unwrap_or(Format::Table), shown)
        .map_err(|error| Failure::new(exit::INTERNAL, format!("cannot draw: {error}")))?;
    match output {
        Some(output) => Ok(output.commit(&bytes)?),
        None => to_stdout(&String::from_utf8_lossy(&bytes)),
    }
}

fn recording((name, runs): &(String, Vec<Run>)) -> Recording<'_> {
    Recording { name: name.clone(), runs: runs.iter().map(|run| &run.profile).collect() }
}
