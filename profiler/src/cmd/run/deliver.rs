//! What becomes of a profile at the end of a run: its table, its file, and the exit code.

use super::super::exports::Exports;
use super::super::report;
use crate::cli::RunArgs;
use crate::error::{Failure, exit};
use crate::export::{Exporter as _, Json};
use crate::load::LoadStatus;
use crate::profile::{OutputFile, Profile};

/// Prints the table and writes the files; each is tried, whatever becomes of the others.
pub(super) fn deliver(
    args: &RunArgs,
    profile: &Profile,
    json: Option<OutputFile>,
    exports: Exports,
) -> Result<(), Failure> {
    let to_stdout = json.as_ref().is_some_and(OutputFile::is_stdout) || exports.use_stdout();
    let written = json.map_or(Ok(()), |file| file.commit(&Json.serialize(profile)));
    let exported = exports.commit(profile, args.unit);
    let printed = if to_stdout {
        // Standard output is taken; the table goes where people read.
        report::print(profile, args.unit, None, &mut std::io::stderr().lock())
    } else {
        report::print(profile, args.unit, report::stdout_width(), &mut std::io::stdout().lock())
    };
    written?;
    exported?;
    printed.map_err(|error| Failure::from(report::ReportError::Write(error)))
}

/// The exit code after a report.
pub(super) fn verdict(
    profile: &Profile,
    signal: Option<(u8, &'static str)>,
) -> Result<(), Failure> {
    if let Some((code, name)) = signal {
        return Err(Failure::new(
            code,
            format!("ended by {name}; the report covers the time until then"),
        ));
    }
    for run in &profile.loads {
        if let LoadStatus::Failed(failure) = &run.outcome.status {
            return Err(Failure::new(
                exit::LOAD_FAILED,
                format!("{failure}; the report covers what was measured"),
            ));
        }
    }
    if profile.handlers.iter().all(|handler| handler.count == 0) {
        return Err(Failure::new(
            exit::NO_HITS,
            "no handler had a single hit: the warnings above say why that may be",
        ));
    }
    Ok(())
}
