//! `profiler tax`: what operations take more with a subject than without it.

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, exit};
use profiler_base::progress::Progress;
use profiler_export::tax::{TaxReport, document};
use profiler_lab::tax::{Taxed, measure};
use profiler_run::args::TaxArgs;

use super::{save, stdout_width, to_stdout};

/// See the [command line](TaxArgs).
///
/// # Errors
/// With the exit code of the [table](exit). What was measured before a failure has been reported and saved.
pub fn run(args: &TaxArgs) -> Result<(), Failure> {
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let Taxed { columns, loads, failure } = measure(args, &mut Progress::new(args.guests.quiet))?;
    let report = TaxReport::of(&columns, &loads);
    if !report.operations.is_empty() {
        save(json, &report)?;
        to_stdout(&document(&report).text(stdout_width()))?;
    }
    match failure {
        Some(failure) => Err(failure),
        None if report.unreached().len() == report.subjects.len() => {
            let text = "no operation ran a function of a subject: choose other loads with --builtin; `profiler list --module \
                        FILE.ko`, or `--agent COMMAND`, shows what is hooked";
            Err(Failure::new(exit::NO_HITS, text))
        }
        None => Ok(()),
    }
}
