//! `profiler sweep`: a grid of runs, one recording per cell, that can be stopped and continued.

use super::run::prepare;
use super::{stdout_width, to_stdout};
use crate::args::RunArgs;
use crate::cli::{SweepArgs, run_arguments};
use crate::error::{Failure, exit};
use crate::progress::Progress;
use crate::recording::Recording;
use crate::run::{Measured, Signal, Stage};
use crate::sweep::{Cell, Grid, Sweep, table};

/// Runs the cells that are missing, and prints the table of all.
///
/// # Errors
/// If the folder holds another grid, or a cell cannot be measured (earlier cells are kept); after a
/// signal, with its exit code.
pub fn run(args: &SweepArgs) -> Result<(), Failure> {
    let rates = args.rate.iter().map(|asked| asked.0).collect();
    let grid = Grid::new(rates, args.workers.clone(), args.repeat, &args.run)?;
    let cells = grid.cells();
    let runs = cells.iter().map(|cell| run_of(cell, args)).collect::<Result<Vec<_>, _>>()?;
    let sweep = Sweep::open(&grid, &args.out)?;
    let mut left = Vec::new();
    for (cell, run) in cells.iter().zip(&runs) {
        if sweep.read(cell)?.is_none() {
            left.push((cell, run));
        }
    }
    // A run of each combination, then another: what drifts in the machine does so for all of them.
    left.sort_by_key(|(cell, _)| cell.run);
    let (all, mut done) = (cells.len(), cells.len() - left.len());
    let mut progress = Progress::new(args.quiet);
    if done > 0 {
        progress.say(&format!("{done} of {all} cells exist already"));
    }
    let mut stage = Stage::new()?;
    for (cell, run) in left {
        progress.say(&format!("cell {} of {all}: {cell}", done + 1));
        match measure(cell, run, &mut stage)? {
            Ok(recording) => sweep.write(cell, &recording)?,
            Err(signal) => {
                let text = format!(
                    "ended by {signal} with {done} of {all} cells measured; the same command continues with the rest",
                );
                return Err(Failure::new(signal.code(), text));
            }
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

/// The run of a cell, or the signal that ended it.
fn measure(
    cell: &Cell,
    args: &RunArgs,
    stage: &mut Stage,
) -> Result<Result<Recording, Signal>, Failure> {
    if let Some(signal) = stage.pending() {
        return Ok(Err(signal));
    }
    let failed = |failure: Failure| {
        let text =
            format!("cell {cell} was not measured: {failure}; cells measured before are kept");
        Failure::new(failure.code, text)
    };
    let run = prepare(args).map_err(failed)?;
    if run.is_several() {
        let text = "the load profile has several parts: sweep one of them";
        return Err(failed(Failure::new(exit::USAGE, text)));
    }
    let Measured { mut recordings, end } = run.measure_on(stage, &mut Progress::new(true));
    match (end, recordings.pop()) {
        (Ok(()), Some(recording)) => Ok(Ok(recording)),
        (Ok(()), None) => Err(failed(Failure::new(exit::INTERNAL, "it made no recording"))),
        (Err(failure), _) => Signal::of(&failure).map(Err).ok_or_else(|| failed(failure)),
    }
}

/// The arguments of a cell's run, checked before anything is measured.
fn run_of(cell: &Cell, args: &SweepArgs) -> Result<Box<RunArgs>, Failure> {
    let usage = |text: String| Failure::new(exit::USAGE, text);
    let run = run_arguments(cell.arguments(&args.run)).map_err(|error| {
        usage(format!("`profiler run` does not accept the arguments after `--`: {error}"))
    })?;
    let Some(run) = run else { return Err(usage("arguments of a run are missing".to_owned())) };
    let text = if run.repeat > 1 {
        "--repeat is an option of the sweep: write it before the `--`, and each run gets its own file"
    } else if run.json.is_some() || !run.export.is_empty() {
        "a cell's file is in --out: neither --json nor --export is for a run of a sweep; `profiler report` converts it"
    } else {
        return Ok(run);
    };
    Err(usage(text.to_owned()))
}
