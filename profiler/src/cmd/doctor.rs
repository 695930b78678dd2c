//! `profiler doctor`: what this machine can measure, and what to do where it cannot.

use super::show;
use crate::cli::DoctorArgs;
use crate::doctor::{Machine, examine, table};
use profiler_base::error::{Failure, bail};

/// Prints the checks and their remedies.
///
/// # Errors
/// With [`exit::CANNOT_MEASURE`](profiler_base::error::exit) when nothing can be measured, after the output.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    super::restore_tracefs();
    let report = examine(&Machine::this(), args.module.as_deref(), &args.handlers);
    show(args.json, &report, |width| table::text(&report, width))?;
    if report.can_measure {
        return Ok(());
    }
    let what = match &report.module {
        Some(module) => format!("functions of module {module}"),
        None => "functions of the kernel".to_owned(),
    };
    bail!(CANNOT_MEASURE, "this machine cannot measure {what}: see the remedies above")
}
