//! `profiler import`: latencies that another tool recorded, as a recording.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::Failure;
use profiler_export::{Unit, table};

use super::{data_to_stdout, stdout_width};
use crate::trace_cmd::Import;

/// Tools whose recordings are read.
#[derive(Debug, Subcommand)]
pub enum ImportSource {
    /// function_graph text: what `trace-cmd report` prints, or ftrace's `trace` and `trace_pipe`.
    TraceCmd(TraceCmdArgs),
}

const EXAMPLES: &str = "\
Examples:
  # a file with the output of trace-cmd report
  profiler import trace-cmd bind_entry_handler.txt
  # straight from trace.dat
  trace-cmd report -i trace.dat | profiler import trace-cmd -";

/// Arguments of `profiler import trace-cmd`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TraceCmdArgs {
    /// The text (`-` is standard input).
    pub file: PathBuf,
    /// Write the recording to this file (`-` is standard output): `report`, `compare` and `merge` read it.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

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
