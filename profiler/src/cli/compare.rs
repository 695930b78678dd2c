//! Arguments of `profiler compare`, and what `gate` shares with it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use profiler_recording::unlike::What;

/// The runs of both sides.
#[derive(Debug, Args)]
pub struct SidesArgs {
    /// Recordings of the baseline, by `profiler run --json` or `profiler lab`; with two files and no
    /// `--`, the second is the candidate.
    #[arg(value_name = "BASE")]
    pub base: Vec<PathBuf>,
    /// Recordings of the candidate.
    #[arg(last = true, value_name = "CANDIDATE")]
    pub candidate: Vec<PathBuf>,
    /// Compare although the runs differ in this: clock, backend, kernel, machine, mitigations, modules,
    /// module-build (among the runs of one side), parameters, load, tests, errors, precision, window or tool
    /// (repeatable, or several with commas).
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub allow_different: Vec<What>,
    /// Treat runs as independent, whatever their boot. Without it, runs of a boot that the other side
    /// does not share count as one value, because a boot makes its runs alike.
    #[arg(long)]
    pub independent_runs: bool,
}

const EXAMPLES: &str = "\
Examples:
  # the two series of an A/B in the lab
  profiler compare base.json candidate.json
  # single runs, made in turns
  profiler compare base1.json base2.json base3.json -- new1.json new2.json new3.json";

/// Arguments of `profiler compare`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompareArgs {
    /// The runs.
    #[command(flatten)]
    pub sides: SidesArgs,
    /// Format of standard output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Write everything as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Format of standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table.
    Text,
    /// All figures, as JSON.
    Json,
    /// Markdown, for a comment on a change.
    Markdown,
}
