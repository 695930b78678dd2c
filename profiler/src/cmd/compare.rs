//! `profiler compare`: what differs between two sets of runs.

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, exit};
use profiler_export::compare;
use profiler_export::verdict::CompareReport;
use profiler_recording::json::indented;
use profiler_verdict::Sides;

use super::{data_to_stdout, save, sides, stdout_width, to_stdout};
use crate::cli::compare::{CompareArgs, Format};

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
