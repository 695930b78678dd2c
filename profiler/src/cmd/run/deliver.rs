//! What becomes of a profile at the end of a run: its table and its file.

use std::io::Write;

use super::super::exports::Exports;
use super::super::report;
use crate::atomic_file::{OutputFile, rescue};
use crate::cli::RunArgs;
use crate::error::Failure;
use crate::export::{Exporter as _, Json};
use crate::profile::{Profile, Series};

/// What a run has brought.
pub(super) enum Delivery {
    /// One profile.
    One(Box<Profile>),
    /// Several, kept apart.
    Runs(Series),
}

impl Delivery {
    /// All profiles.
    fn profiles(&self) -> &[Profile] {
        match self {
            Self::One(profile) => std::slice::from_ref(profile),
            Self::Runs(series) => &series.runs,
        }
    }
}

/// Prints the table and writes the files; each is tried, whatever becomes of the others.
pub(super) fn deliver(
    args: &RunArgs,
    result: &Delivery,
    json: Option<OutputFile>,
    exports: Exports,
) -> Result<(), Failure> {
    let to_stdout = json.as_ref().is_some_and(OutputFile::is_stdout) || exports.use_stdout();
    let document = match result {
        Delivery::One(profile) => Json.serialize(profile),
        Delivery::Runs(series) => series.to_json(),
    };
    let saved = json.map(|file| file.commit(&document).map_err(Failure::from));
    let is_saved = matches!(saved, Some(Ok(())));
    let exported = match result {
        Delivery::One(profile) => exports.commit(profile, args.unit),
        Delivery::Runs(_) => Ok(()),
    };
    let written = saved.unwrap_or(Ok(())).and(exported).map_err(|failure| match is_saved {
        true => failure,
        false => rescued(failure, &document),
    });
    let printed = if to_stdout {
        // Standard output is taken; the table goes where people read.
        print(args, result, None, &mut std::io::stderr().lock())
    } else {
        let out = &mut std::io::stdout().lock();
        print(args, result, report::stdout_width(), out)
    };
    written?;
    printed.map_err(|error| Failure::from(report::ReportError::Write(error)))
}

/// What was measured is not lost with the disk that it should have gone to.
fn rescued(failure: Failure, document: &[u8]) -> Failure {
    let where_to = match rescue(document) {
        Ok(path) => format!("what was measured is in {} instead", path.display()),
        Err(error) => format!("what was measured is in the table alone: {error}"),
    };
    Failure::new(failure.code, format!("{}; {where_to}", failure.message))
}

fn print(
    args: &RunArgs,
    result: &Delivery,
    width: Option<u16>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    match result {
        Delivery::One(profile) => report::print(profile, args.unit, width, out)?,
        Delivery::Runs(series) => report::print_series(series, args.unit, width, out)?,
    }
    if args.plot {
        report::print_plots(result.profiles(), out)?;
    }
    Ok(())
}
