//! `profiler import`: latencies that another tool recorded, as a recording.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use crate::atomic_file::OutputFile;
use crate::cmd::report::unwritable;
use crate::error::Failure;
use crate::export::{Exporter as _, Table, Unit};
use crate::progress::Progress;
use crate::terminal::write;
use crate::trace_cmd::{Import, ImportError, Percentile};

/// Options of an import.
#[derive(Debug)]
pub struct Options<'a> {
    /// The file; `-` is standard input.
    pub file: &'a Path,
    /// How percentiles are computed.
    pub percentile: Percentile,
    /// The file of the recording, if any; `-` is standard output, and then replaces the table.
    pub json: Option<&'a Path>,
    /// No progress on standard error.
    pub quiet: bool,
    /// Columns of the terminal; `None` never wraps.
    pub width: Option<u16>,
}

/// Prints the table and the percentiles of a file of function_graph text to `out`, and writes its recording.
///
/// # Errors
/// If the file cannot be read or has no call, or an output cannot be written. A closed pipe is not an
/// error.
pub fn trace_cmd(options: &Options<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let json = options.json.map(OutputFile::open).transpose()?;
    let stdin = options.file == Path::new("-");
    let name = if stdin { "standard input".to_owned() } else { options.file.display().to_string() };
    let unreadable = |error| ImportError::unreadable(&name, &error);
    let (mut input, size): (Box<dyn Read>, _) = if stdin {
        (Box::new(io::stdin().lock()), None)
    } else {
        let file = File::open(options.file).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let size = metadata.is_file().then_some(metadata.len());
        (Box::new(file), size)
    };
    let mut progress = Progress::new(options.quiet);
    progress.begin_bytes("importing", size);
    let import = Import::read(&mut *input, &name, &mut |bytes| progress.at_bytes(bytes));
    progress.end();
    let import = import?;

    if !json.as_ref().is_some_and(OutputFile::is_stdout) {
        let width = options.width;
        let mut text = Table { unit: Unit::Us, width }.serialize(&import.recording);
        text.extend(format!("\n{}", import.percentiles(options.percentile, width)).into_bytes());
        write(out, &text).map_err(|error| unwritable(&error))?;
    }
    if let Some(json) = json {
        json.commit(&import.recording.to_json())?;
    }
    Ok(())
}
