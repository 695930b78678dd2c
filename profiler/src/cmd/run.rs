//! `profiler run`: measures, reports, and writes files.

mod deliver;
mod options;

use super::exports::Exports;
use crate::atomic_file::OutputFile;
use crate::cli::RunArgs;
use crate::error::{Failure, exit};
use crate::export::series;
use crate::kernel::privileges;
use crate::progress::Progress;
use crate::recording::Series;
use crate::run::{Measured, Run};

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
    if let Some(one) = args.export.iter().find(|export| !series::holds(export.format))
        && run.is_several()
    {
        let text = format!(
            "--export {} holds one run, and these are several: write --json, and choose a run with `profiler report --run`",
            one.format
        );
        return Err(Failure::new(exit::USAGE, text));
    }
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let exports = Exports::open(&args.export, json.as_ref())?;
    let mut progress = Progress::new(args.quiet).drawn(!args.no_progress);
    let Measured { recordings, end } = run.measure(&mut progress)?;
    if recordings.is_empty() {
        return Ok(end?);
    }
    let series = Series::new(args.ltp.profile.as_deref().unwrap_or_default(), recordings);
    deliver::deliver(args, &series, run.is_several(), json, exports)?;
    Ok(end?)
}
