//! `profiler run`: measures, reports, and writes files.

mod deliver;
mod options;

use super::exports::Exports;
use crate::atomic_file::OutputFile;
use crate::cli::RunArgs;
use crate::error::{Failure, exit};
use crate::kernel::privileges;
use crate::profile::Series;
use crate::progress::Progress;
use crate::run::{Measured, Run};

use deliver::Delivery;

/// See the [command line](RunArgs).
///
/// # Errors
/// With the exit code of the [table](exit). Codes 5, 6, 9, 130 and 143 come after the report.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    if !args.no_probe {
        privileges::check()?;
        super::restore_tracefs();
    }
    let run = Run::prepare(args.into())?;
    // Several runs make a series, which has no form but JSON.
    if run.is_several() && !args.export.is_empty() {
        let text = "--export writes one run, and these are several: write --json, which `profiler report` \
                    makes other formats of";
        return Err(Failure::new(exit::USAGE, text));
    }
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let exports = Exports::open(&args.export, json.as_ref())?;
    let mut progress = Progress::new(args.quiet).drawn(!args.no_progress);
    let Measured { mut profiles, end } = run.measure(&mut progress)?;
    let result = match profiles.pop() {
        None => return Ok(end?),
        Some(only) if !run.is_several() => Delivery::One(Box::new(only)),
        Some(last) => {
            profiles.push(last);
            Delivery::Runs(Series::new(args.ltp.profile.as_deref().unwrap_or_default(), profiles))
        }
    };
    deliver::deliver(args, &result, json, exports)?;
    Ok(end?)
}
