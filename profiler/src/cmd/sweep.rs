//! `profiler sweep`: a grid of runs, one recording per cell, that can be stopped and continued.

use std::path::Path;

use super::failures::of_signal;
use super::{stdout_width, to_stdout};
use crate::cli::{SweepArgs, run_arguments};
use crate::error::{Failure, exit};
use crate::progress::Progress;
use crate::run::{self, Signals};
use crate::sweep::{Grid, Sweep, table};

/// Runs the cells that are missing, and prints the table of all.
///
/// # Errors
/// If the folder holds another grid, or a cell cannot be measured (earlier cells are kept); after a
/// signal, with its exit code.
pub fn run(args: &SweepArgs) -> Result<(), Failure> {
    let rates = args.rate.iter().map(|asked| asked.0).collect();
    let grid = Grid::new(rates, args.workers.clone(), args.repeat, &args.run)?;
    check_arguments(args, &grid)?;
    let sweep = Sweep::open(&grid, &args.out, args.run.clone())?;
    let cells = grid.cells();
    let mut left = Vec::new();
    for cell in &cells {
        if sweep.read(cell)?.is_none() {
            left.push(cell);
        }
    }
    // A run of each combination, then another: what drifts in the machine does so for all of them.
    left.sort_by_key(|cell| cell.run);
    let (all, mut done) = (cells.len(), cells.len() - left.len());
    let mut progress = Progress::new(args.quiet);
    if done > 0 {
        progress.say(&format!("{done} of {all} cells exist already"));
    }
    // One thread, because a run dies with the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::new(exit::INTERNAL, format!("cannot start the async runtime: {error}"))
    })?;
    let mut signals = runtime.block_on(async { Signals::new() }).map_err(run::Error::from)?;
    for cell in left {
        progress.say(&format!("cell {} of {all}: {cell}", done + 1));
        if let Some(signal) = runtime.block_on(sweep.measure(cell, &mut signals))? {
            let text = format!(
                "ended by {signal} with {done} of {all} cells measured; the same command continues with the rest",
            );
            return Err(Failure::new(of_signal(signal), text));
        }
        done += 1;
    }
    progress.end();
    let mut measured = Vec::new();
    for cell in cells {
        let recording = sweep.read(&cell)?;
        measured.extend(recording.map(|recording| (cell, recording)));
    }
    to_stdout(&table::text(&measured, args.unit, stdout_width()))
}

/// Checks that `profiler run` accepts the arguments, before anything is measured.
fn check_arguments(args: &SweepArgs, grid: &Grid) -> Result<(), Failure> {
    let Some(cell) = grid.cells().into_iter().next() else { return Ok(()) };
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
