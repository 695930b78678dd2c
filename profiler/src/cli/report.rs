//! Arguments of `profiler report`.

use std::path::PathBuf;

use clap::Args;

use profiler_export::{Format, Unit};

use super::by_name;

const EXAMPLES: &str = "\
Examples:
  # the table that the run printed
  profiler report run.json
  # Markdown for a merge request, and a log for HdrHistogram's viewers
  profiler report run.json --format markdown --unit us
  profiler report run.json --output run.hlog
  # one handler; one run of a series
  profiler report run.json --handler bind_handler --output bind.html
  profiler report series.json --run 3 --format csv";

/// Arguments of `profiler report`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// The recording (`-` is standard input; a pipe works, too).
    pub file: PathBuf,
    /// Unit of durations: auto, ns, us or ms.
    #[arg(long, default_value_t = Unit::Auto)]
    pub unit: Unit,
    /// Format [default: by the extension of --output, else table].
    #[arg(long, short, value_parser = by_name::<Format>())]
    pub format: Option<Format>,
    /// Write to this file instead of standard output; an existing file is replaced atomically.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Only this run of a series, from 1.
    #[arg(long, value_name = "N")]
    pub run: Option<usize>,
    /// Only these handlers, by name or glob (repeatable).
    #[arg(long = "handler", short = 'H', value_name = "NAME|GLOB")]
    pub handlers: Vec<glob::Pattern>,
}
