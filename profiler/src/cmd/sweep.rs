//! `profiler sweep`: a grid of runs, one recording per cell, that can be stopped and continued.

use std::path::Path;

use super::failures::of_signal;
use super::{report::stdout_width, to_stdout};
use crate::cli::{SweepArgs, run_arguments};
use crate::error::{Failure, exit};
use crate::progress::Progress;
use crate::run::{self, Signals};
use crate::sweep::{Axes, Grid, Sweep, table};

/// Runs the cells that are missing, and prints the table of all.
///
/// # Errors
/// If the folder holds another grid, or a cell cannot be measured (earlier cells are kept); after a
/// signal, with its exit code.
pub fn run(args: &SweepArgs) -> Result<(), Failure> {
    let axes = Axes {
        rates: args.rate.iter().map(|asked| asked.0).collect(),
        workers: args.workers.clone(),
        net_delays: args.net_delay.clone(),
        repeat: args.repeat,
    };
    let grid = Grid::new(axes, &args.run)?;
    check_arguments(args, &grid)?;
    let (mut sweep, left) = Sweep::open(&grid, &args.out, args.run.clone())?;
    let all = sweep.done.len() + left.len();
    let mut progress = Progress::new(args.quiet);
    if !sweep.done.is_empty() {
        progress.say(&format!("{} of {all} cells exist already", sweep.done.len()));
    }
    // One thread, because a run dies with the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::new(exit::INTERNAL, format!("cannot start the async runtime: {error}"))
    })?;
    let mut signals = runtime.block_on(async { Signals::new() }).map_err(run::Error::from)?;
    for cell in left {
        progress.say(&format!("cell {} of {all}: {cell}", sweep.done.len() + 1));
        let measured = sweep.measure(cell, async || signals.next().await);
        if let Some(signal) = runtime.block_on(measured)? {
            let text = format!(
                "ended by {signal} with {} of {all} cells measured; the same command continues with the rest",
                sweep.done.len()
            );
            return Err(Failure::new(of_signal(signal), text));
        }
    }
    progress.end();
    sweep.done.sort_by_key(|(cell, _)| cell.at);
    to_stdout(&table::text(&sweep.done, args.unit, stdout_width()))
}

/// Checks that `profiler run` accepts the arguments, before anything is measured.
fn check_arguments(args: &SweepArgs, grid: &Grid) -> Result<(), Failure> {
    let Some(cell) = grid.cells().next() else { return Ok(()) };
    match run_arguments(cell.arguments(&args.run, Path::new("cell.json"))) {
        Ok(Some(run)) if run.repeat > 1 => Err(Failure::new(
            exit::USAGE,
            "--repeat is an option of the sweep: write it before the `--`, and each run gets its own file",
        )),
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(
            exit::USAGE,
            format!("`profiler run` does not accept the arguments after `--`: {error}"),
        )),
    }
}
