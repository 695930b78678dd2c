//! `profiler import`: latencies that another tool recorded, as a recording.

use std::fs::File;
use std::io;
use std::path::Path;

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::Failure;
use profiler_export::{Unit, table};

use super::{data_to_stdout, stdout_width};
use crate::cli::TraceCmdArgs;
use crate::trace_cmd::Import;

/// Prints the table and the percentiles of a file of function_graph text, and writes its recording.
///
/// # Errors
/// If the file cannot be read or has no call, or an output cannot be written. A closed pipe is not an
/// error.
pub fn trace_cmd(args: &TraceCmdArgs) -> Result<(), Failure> {
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let is_stdin = args.file == Path::new("-");
    let import = if is_stdin {
        Import::read(&mut io::stdin().lock(), "standard input")?
    } else {
        let mut file = File::open(&args.file).map_err(Failure::cannot_read(&args.file))?;
        Import::read(&mut file, &args.file.display().to_string())?
    };

    if !json.as_ref().is_some_and(OutputFile::is_stdout) {
        let width = stdout_width();
        let figures = table(std::slice::from_ref(&import.recording), Unit::Us, width);
        let text = format!("{figures}\n{}", import.percentiles(width));
        data_to_stdout(text.as_bytes())?;
    }
    if let Some(json) = json {
        json.commit(&import.recording.to_json())?;
    }
    Ok(())
}
