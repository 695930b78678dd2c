//! Output at the end of a run: its table and its files.

use std::io::Write;

use super::super::exports::Exports;
use super::super::report;
use crate::atomic_file::{OutputFile, rescue};
use crate::cli::RunArgs;
use crate::error::Failure;
use crate::recording::Series;
use crate::terminal::say;

/// Prints the table and writes the files, even if one fails. `is_several` if more than one run was asked for:
/// `--json` is then a series, however many there are.
pub(super) fn deliver(
    args: &RunArgs,
    result: &Series,
    is_several: bool,
    json: Option<OutputFile>,
    exports: Exports,
) -> Result<(), Failure> {
    let to_stdout = json.as_ref().is_some_and(OutputFile::is_stdout) || exports.use_stdout();
    let document = match result.runs.as_slice() {
        [recording] if !is_several => recording.to_json(),
        _ => result.to_json(),
    };
    let saved = json.map(|file| file.commit(&document).map_err(Failure::from));
    let is_saved = matches!(saved, Some(Ok(())));
    let exported = exports.commit(result, args.unit);
    let written = saved.unwrap_or(Ok(())).and(exported).map_err(|failure| match is_saved {
        true => failure,
        false => rescued(failure, &document),
    });
    let printed = if to_stdout {
        // A file goes to standard output, so the table goes to standard error, which nobody need read.
        let mut text = Vec::new();
        let printed = print(args, result, None, &mut text);
        say(String::from_utf8_lossy(&text).trim_end());
        printed
    } else {
        let out = &mut std::io::stdout().lock();
        print(args, result, report::stdout_width(), out)
    };
    written?;
    printed.map_err(|error| report::unwritable(&error))
}

/// Saves the recording elsewhere if its file cannot be written, because a run cannot be repeated.
fn rescued(failure: Failure, document: &[u8]) -> Failure {
    let where_to = match rescue(document) {
        Ok(path) => format!("the recording is in {} instead", path.display()),
        Err(error) => format!("and it could not be saved elsewhere: {error}"),
    };
    Failure::new(failure.code, format!("{}; {where_to}", failure.message))
}

fn print(
    args: &RunArgs,
    result: &Series,
    width: Option<u16>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    report::print_series(result, args.unit, width, out)?;
    if args.plot {
        report::print_plots(&result.runs, out)?;
    }
    Ok(())
}
