//! Arguments of `profiler sweep`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser as _};

use super::{Cli, Command, RunArgs};
use crate::export::Unit;
use crate::load::Rate;

const EXAMPLES: &str = "\
Examples:
  # latency of Elkeid's connect handlers and of the connects themselves, by rate
  profiler sweep --out connects --rate 1000/s,5000/s,max --workers 1,2 --repeat 5 -- \\
      --module hids_driver --handler 'connect_*' --builtin connect --duration 10s --warmup 1s
  # the same load without probes or privileges
  profiler sweep --out bare --rate 1000/s,5000/s -- --no-probe --builtin connect";

/// Arguments of `profiler sweep`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SweepArgs {
    /// Folder for the recordings, one file per cell. A sweep that was stopped continues there.
    #[arg(long, short, value_name = "DIR")]
    pub out: PathBuf,
    /// Rates of the built-in loads, with commas, such as 100/s,200/s; `max` is as fast as possible.
    #[arg(long, value_delimiter = ',', required = true, value_name = "N/s", value_parser = rate)]
    pub rate: Vec<Asked>,
    /// Numbers of workers, with commas.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub workers: Vec<u32>,
    /// Runs of each combination. All combinations are run once, then all again, so that a drift of the
    /// machine affects all of them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Unit of durations in the table: auto, ns, us or ms.
    #[arg(long, default_value_t = Unit::Auto)]
    pub unit: Unit,
    /// No progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
    /// Arguments of `profiler run` that all cells share.
    #[arg(last = true, required = true, value_name = "RUN ARGUMENTS")]
    pub run: Vec<OsString>,
}

/// A rate, or none: a closed loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Asked(pub Option<Rate>);

fn rate(text: &str) -> Result<Asked, String> {
    if text == "max" {
        return Ok(Asked(None));
    }
    text.parse()
        .map(|rate| Asked(Some(rate)))
        .map_err(|error: String| format!("{error}; or `max`, as fast as possible"))
}

/// The arguments of `profiler run` in `words`; `None` if they are of another subcommand.
///
/// # Errors
/// What `profiler run` says of them.
pub fn run_arguments(
    words: impl IntoIterator<Item = OsString>,
) -> Result<Option<Box<RunArgs>>, String> {
    let words = ["profiler".into(), "run".into()].into_iter().chain(words);
    match Cli::try_parse_from(words) {
        Ok(Cli { command: Command::Run(run) }) => Ok(Some(run)),
        Ok(_) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
