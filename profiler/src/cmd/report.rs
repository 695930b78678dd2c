//! `profiler report`: a recording as a table or in another format.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, bail, exit};
use profiler_base::terminal::write;
use profiler_export::{Format, Unit};
use profiler_recording::Series;
use profiler_run::args::by_name;

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

/// Writes the report to `out`, fitted to a terminal of `width` columns, or atomically to the file of `--output`.
///
/// # Errors
/// If the file is not a valid recording or has no such run or handler, or the output cannot be written. A closed pipe is not an error.
pub fn run(args: &ReportArgs, width: Option<u16>, out: &mut dyn Write) -> Result<(), Failure> {
    let output = args.output.as_deref().map(OutputFile::open).transpose()?;
    let format = format(args)?;
    let series = read(&args.file, args)?;
    let bytes = format.render(&series, args.unit, width.filter(|_| output.is_none()));
    match output {
        Some(output) => Ok(output.commit(&bytes)?),
        None => write(out, &bytes).map_err(|error| {
            let text = format!("cannot write the report: {error}: write it elsewhere");
            Failure::new(exit::BAD_OUTPUT, text)
        }),
    }
}

/// The format, by its name or the output's extension.
fn format(args: &ReportArgs) -> Result<Format, Failure> {
    let output = args.output.as_deref();
    match (args.format.or_else(|| output.and_then(Format::of_file)), output) {
        (Some(format), _) => Ok(format),
        (None, Some(path)) if path.extension().is_some() => {
            let (path, names) = (path.display(), Format::names());
            bail!(USAGE, "the extension of {path} is no format's: add --format ({names})")
        }
        (None, _) => Ok(Format::Table),
    }
}

/// Reads the selected runs and handlers of `file`.
fn read(file: &Path, args: &ReportArgs) -> Result<Series, Failure> {
    let mut series = Series::read(file)?;
    let all = series.runs.len();
    match args.run {
        None => {}
        Some(number) if (1..=all).contains(&number) => {
            series.runs = vec![series.runs.swap_remove(number - 1)];
        }
        Some(number) => {
            bail!(USAGE, "{} has no run {number}: give 1 to {all}", file.display());
        }
    }
    let patterns = &args.handlers;
    for pattern in patterns {
        if !series.runs.iter().flat_map(|run| &run.handlers).any(|h| pattern.matches(&h.name)) {
            bail!(NO_TARGET, "{} has no handler `{pattern}`: its table lists them", file.display());
        }
    }
    if !patterns.is_empty() {
        for run in &mut series.runs {
            run.keep_handlers(|handler| patterns.iter().any(|glob| glob.matches(&handler.name)));
        }
    }
    Ok(series)
}
