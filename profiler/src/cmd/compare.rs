//! `profiler compare`: what differs between two sets of runs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, exit};
use profiler_export::compare;
use profiler_export::verdict::CompareReport;
use profiler_recording::json::indented;
use profiler_verdict::Sides;

use super::sides::{self, SidesArgs};
use super::{data_to_stdout, save, stdout_width, to_stdout};

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

/// See the [command line](CompareArgs).
///
/// # Errors
/// If a file cannot be read or is not a valid recording, the runs are not comparable, or an output
/// cannot be written.
pub fn run(args: &CompareArgs) -> Result<(), Failure> {
    let files = sides::files(&args.sides, true)?;
    if sides::are_builds(files)? {
        let text = "these are builds of a driver, and `compare` reads recordings: `profiler gate BASE.ko CANDIDATE.ko` \
                    measures and judges them";
        return Err(Failure::new(exit::USAGE, text));
    }
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let [base, candidate] = sides::read_sides(files)?;
    let sides =
        Sides::new(&base, &candidate, &args.sides.allow_different, args.sides.independent_runs)
            .map_err(|why| Failure::new(exit::NOT_COMPARABLE, why))?;
    let report = CompareReport::of(&sides);
    save(json, &report)?;
    match args.format {
        Format::Text => to_stdout(&compare::document(&report).text(stdout_width())),
        Format::Json => data_to_stdout(&indented(&report)),
        Format::Markdown => to_stdout(&compare::document(&report).markdown()),
    }
}
