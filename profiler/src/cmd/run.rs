//! `profiler run`: measures, reports, and writes files.

mod deliver;
mod options;

use crate::cli::RunArgs;
use crate::error::Failure;
use crate::kernel::privileges;
use crate::progress::Progress;
use crate::recording::Series;
use crate::run::{Measured, Run};
use deliver::Outputs;

/// See the [command line](RunArgs).
///
/// # Errors
/// With the exit code of the [table](exit). Codes 5, 6, 9, 129, 130 and 143 come after the report.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    if !args.no_probe {
        privileges::check()?;
        super::restore_tracefs();
    }
    let run = Run::prepare(args.into())?;
    let outputs = Outputs::open(args, run.is_several())?;
    let mut progress = Progress::new(args.quiet).drawn(!args.no_progress);
    let Measured { recordings, end } = run.measure(&mut progress)?;
    if recordings.is_empty() {
        return Ok(end?);
    }
    let series = Series::new(args.ltp.profile.as_deref().unwrap_or_default(), recordings);
    outputs.deliver(args, &series, run.is_several())?;
    Ok(end?)
}
