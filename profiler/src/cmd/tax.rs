//! `profiler tax`: what operations take more with a subject than without it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;

use super::{save, stdout_width, to_stdout};
use crate::atomic_file::OutputFile;
use crate::cli::tax::TaxArgs;
use crate::error::{Failure, exit};
use crate::export::tax::{TaxReport, document};
use crate::lab::agent::Agent;
use crate::lab::tax::{Asked, measure, usual_loads};
use crate::progress::Progress;

/// See the [command line](TaxArgs).
///
/// # Errors
/// With the exit code of the [table](exit). What was measured before a failure has been reported and saved.
pub fn run(args: &TaxArgs) -> Result<(), Failure> {
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let mut users: Vec<PathBuf> = args.with.iter().map(PathBuf::from).collect();
    let is_usual = args.builtin.is_empty() && args.command.is_empty();
    let mut loads = if is_usual { usual_loads() } else { args.builtin.clone() };
    let mut seen = HashSet::new();
    loads.retain(|kind| seen.insert(*kind));
    let files = &args.agent.agent_file;
    let words: Result<Vec<_>, _> = args.command.iter().map(|word| quoted(word)).collect();
    let command = words.map_err(|error| Failure::new(exit::USAGE, error.to_string()))?.join(" ");
    // Files are for it, too.
    users.extend((!command.is_empty()).then(|| PathBuf::from(format!("run: {command}"))));
    let program = (!command.is_empty()).then(|| Agent::new(&command, files)).transpose()?;
    let asked = Asked {
        kernel: args.kernel.clone(),
        with: args.with.clone(),
        agent: args.agent.beside(&[&users])?,
        files: files.clone(),
        loads,
        program,
        logs: args.logs.clone(),
    };
    let (columns, failure) = measure(&asked, &mut Progress::new(args.quiet))?;
    let report = TaxReport::of(&columns, &asked.names());
    if !report.operations.is_empty() {
        save(json, &report)?;
        to_stdout(&document(&report).text(stdout_width()))?;
    }
    match failure {
        Some(failure) => Err(failure),
        None if report.unreached().len() == report.subjects.len() => {
            let text = "no operation ran a function of a subject: choose other loads with --builtin; `profiler list --module \
                        FILE.ko`, or `--agent COMMAND`, shows what is hooked";
            Err(Failure::new(exit::NO_HITS, text))
        }
        None => Ok(()),
    }
}

/// A word for a shell, with quotes only where it needs them.
fn quoted(word: &str) -> Result<Cow<'_, str>, shlex::QuoteError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_=./:,@%+-".contains(c);
    let is_bare = !word.is_empty() && word.chars().all(is_plain);
    if is_bare { Ok(Cow::Borrowed(word)) } else { shlex::try_quote(word) }
}
