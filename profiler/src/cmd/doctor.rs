//! `profiler doctor`: what this machine can measure, and what to do where it cannot.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use profiler_base::error::{Failure, bail};

use super::show;
use crate::doctor::{Machine, examine, table};

const EXAMPLES: &str = "\
Examples:
  profiler doctor
  # can these handlers of a loaded driver be measured, and if not, what is missing?
  profiler doctor --module hids_driver --handler 'bind_*'";

/// Arguments of `profiler doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Kernel module to measure.
    #[arg(long, short)]
    pub module: Option<String>,
    /// Functions to check, by name or glob (repeatable).
    #[arg(
        long = "handler",
        short = 'H',
        value_name = "NAME|GLOB",
        default_value = "*_handler",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub handlers: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

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
