//! Arguments of `profiler explain`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::export::explain::Format;
use crate::profile::unlike::What;

const EXAMPLES: &str = "\
Examples:
  # the functions and source lines that a handler's calls consist of
  profiler explain lab.json --handler connect_syscall_handler
  # why a candidate takes longer: what each function and line takes more
  profiler explain base.json candidate.json
  # a flame graph of the difference
  profiler explain base.json candidate.json --handler bind_handler --output bind.svg";

/// Arguments of `profiler explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// JSON file of a run or of a series that `profiler lab --meter exact` wrote (`-` is standard
    /// input); all runs of a series are summed.
    #[arg(value_name = "FILE")]
    pub base: PathBuf,
    /// A second one: what differs in it is explained.
    #[arg(value_name = "CANDIDATE")]
    pub candidate: Option<PathBuf>,
    /// The only function that is wanted [default: all that were called from outside of the handlers].
    #[arg(long, short = 'H', value_name = "NAME")]
    pub handler: Option<String>,
    /// Levels of calls below the handler that tables show; what is deeper is summed.
    #[arg(long, value_name = "N")]
    pub depth: Option<u32>,
    /// Functions that take, or differ by, less than this of the handler's instructions are summed in
    /// tables [default: 0.1, and 0 for two files].
    #[arg(long, value_name = "PERCENT", value_parser = super::percent)]
    pub min_share: Option<f64>,
    /// Format [default: what the ending of --output tells, else table].
    #[arg(long, short, value_parser = format())]
    pub format: Option<Format>,
    /// Write to this file instead of standard output; an older file is replaced in one step.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Compare although the recordings differ in this: see `profiler compare --help`.
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub allow_different: Vec<What>,
}

/// Formats by their names, so that help and completions list them.
fn format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.iter().map(|format| format.name()))
        .try_map(|name| name.parse::<Format>())
}
