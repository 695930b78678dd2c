//! The tables of a lab: how far runs are apart, and what the driver costs an operation.

use std::collections::BTreeSet;

use super::spread::{self, STATISTICS};
use super::subject::{Build, Subject};
use super::{KernelBuilds, has_cost};
use crate::export::document::{Table, or_dash};
use crate::load::LoadSpec;
use crate::recording::{DriverCost, HandlerRecording, Recording, Series};
use crate::stats::{mean, mean_below, median};

/// What was measured, and medians and spreads over the runs of `build`.
#[must_use]
pub fn spreads(
    series: &Series,
    build: Option<&Build>,
    bench: &KernelBuilds,
    width: Option<u16>,
) -> String {
    format!("{}{}", head(series, build, bench), spread_table(series, width))
}

fn head(series: &Series, build: Option<&Build>, bench: &KernelBuilds) -> String {
    let boots: BTreeSet<u32> =
        series.runs.iter().filter_map(|run| run.place.as_ref().map(|place| place.boot)).collect();
    let clock = series.runs.first().map_or(String::new(), |run| run.clock.to_string());
    let unit = series.runs.first().map(|run| run.meter).unwrap_or_default().unit();
    let label = if series.label.is_empty() { String::new() } else { format!("{}: ", series.label) };
    let module = series.runs.first().and_then(|run| run.modules.first());
    let id = module.and_then(|module| module.build_id.as_deref()).unwrap_or("unknown");
    let params = build.map_or("", |build| build.params.as_str());
    let name = match build.map(|build| &build.subject) {
        Some(command @ Subject::Command(_)) => command.to_string(),
        _ => bench.baseline.name.clone(),
    };
    let params = if params.is_empty() { String::new() } else { format!(", {params}") };
    format!(
        "{label}{name} (build id {id}{params}) on Linux {}, clock {clock}, {} runs in {} boots\n\
         medians over the runs in {unit}, and in percent of them how far the runs are apart\n",
        bench.kernel.release,
        series.runs.len(),
        boots.len(),
    )
}

fn spread_table(series: &Series, width: Option<u16>) -> String {
    let mut header = vec!["handler", "calls"];
    for (name, _) in STATISTICS {
        header.extend([name, "spread"]);
    }
    let rows = spread::of(series).into_iter().map(|handler| {
        let (fewest, most) = handler.calls;
        let calls = if fewest == most { most.to_string() } else { format!("{fewest}..{most}") };
        let mut cells = vec![handler.handler, calls];
        for (statistic, (_, quantile)) in handler.statistics.iter().zip(STATISTICS) {
            match statistic {
                Some((median, spread)) => {
                    let digits = if quantile.is_none() { 2 } else { 0 };
                    cells.push(format!("{median:.digits$}"));
                    cells.push(format!("{:.3} %", spread * 100.0));
                }
                None => cells.extend(["-".to_owned(), "-".to_owned()]),
            }
        }
        cells
    });
    Table::figures(header, rows).text(width)
}

/// Calls above this quantile are no part of the averages of [`beside`]: under virtual time the timer interrupts far fewer.
const UNINTERRUPTED: f64 = 0.99;

/// What was counted beside what probes measured under virtual time: medians over the runs.
#[must_use]
pub fn beside(counted: &[Recording], probed: &[Recording], width: Option<u16>) -> String {
    let handlers = counted.first().map_or(&[][..], |run| &run.handlers);
    let average = |run: &Recording, handler: &HandlerRecording| {
        mean_below(&same(run, handler)?.histogram.buckets, UNINTERRUPTED)
    };
    let iterations = |run: &Recording, handler: &HandlerRecording| {
        let (tree, calls) = (run.call_tree.as_ref()?, same(run, handler)?.count);
        mean(tree.iterations_of(&handler.name, handler.module.as_deref()), calls)
    };
    let of_runs =
        |runs: &[Recording],
         handler: &HandlerRecording,
         figure: &dyn Fn(&Recording, &HandlerRecording) -> Option<f64>| {
            median(&runs.iter().filter_map(|run| figure(run, handler)).collect::<Vec<_>>())
        };
    let of_handler = |handler| {
        [
            of_runs(counted, handler, &average),
            of_runs(counted, handler, &iterations),
            of_runs(probed, handler, &average),
        ]
    };
    let figures: Vec<[Option<f64>; 3]> = handlers.iter().map(of_handler).collect();
    let rows = handlers.iter().zip(&figures).zip(surplus(&figures));
    let rows = rows.map(|((handler, figures), surplus)| {
        let cell = |value: Option<f64>| or_dash(value.map(|value| format!("{value:.0}")));
        let more = [surplus.map(|it| it.0), surplus.map(|it| it.1)];
        let cells = figures.iter().copied().chain(more).map(cell);
        [handler.name.clone()].into_iter().chain(cells).collect()
    });
    let header = ["handler", "counted", "repeated", "by probes", "more", "beyond the least"];
    format!(
        "averages of a call in instructions, of the calls up to TP99: counted, iterations of instructions that repeat, and by\n\
         probes under virtual time, where each instruction and each iteration is a nanosecond: what probes say more is\n\
         their own, about the same for each handler\n{}",
        Table::figures(header, rows).text(width)
    )
}

fn same<'a>(run: &'a Recording, handler: &HandlerRecording) -> Option<&'a HandlerRecording> {
    let is_it = |other: &&HandlerRecording| {
        (&other.name, &other.module) == (&handler.name, &handler.module)
    };
    run.handlers.iter().find(is_it)
}

/// By how much the third figure is more than the first two, and by how much that is more than where it is least.
fn surplus(figures: &[[Option<f64>; 3]]) -> Vec<Option<(f64, f64)>> {
    let more: Vec<Option<f64>> = figures
        .iter()
        .map(|[counted, repeated, probed]| Some((*probed)? - (*counted)? - (*repeated)?))
        .collect();
    let least = more.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    more.into_iter().map(|more| more.map(|more| (more, more - least))).collect()
}

/// What one load's operations took without the driver and with it, in each run.
#[derive(Debug, PartialEq)]
enum Added {
    /// Medians over the runs, in nanoseconds.
    Cost { without: f64, with: f64 },
    /// Why there is no meaningful figure.
    Unknown(String),
}

/// A driver cannot make an operation cheaper: if one run took no longer with it, the differences of the
/// other runs have another cause, too.
fn added(runs: &[(f64, f64)]) -> Added {
    let is_time = |ns: &f64| ns.is_finite() && *ns > 0.0;
    if !runs.iter().all(|(without, with)| is_time(without) && is_time(with)) {
        return Added::Unknown("no CPU time was measured".to_owned());
    }
    let no_longer = runs.iter().filter(|(without, with)| with <= without).count();
    let of_each = |side: fn(&(f64, f64)) -> f64| median(&runs.iter().map(side).collect::<Vec<_>>());
    match (of_each(|run| run.0), of_each(|run| run.1)) {
        (Some(without), Some(with)) if no_longer == 0 => Added::Cost { without, with },
        (Some(_), Some(_)) => Added::Unknown(format!(
            "in {no_longer} of {} runs it took no longer with the driver: the cost cannot be distinguished from zero",
            runs.len()
        )),
        _ => Added::Unknown("there is no run".to_owned()),
    }
}

/// What the driver costs an operation, if that was measured: medians over the runs.
#[must_use]
pub fn costs(series: &Series, width: Option<u16>) -> Option<String> {
    let first = series.runs.first()?;
    if first.driver_costs.is_empty() {
        return None;
    }
    let mut notes = String::new();
    let rows: Vec<Vec<String>> =
        (0..first.driver_costs.len()).map(|index| cost_row(series, index, &mut notes)).collect();
    let uncounted = first.loads.iter().filter_map(|load| match &load.spec {
        LoadSpec::Builtin { name, .. } if !has_cost(*name) => Some(*name),
        _ => None,
    });
    for kind in uncounted {
        notes.push_str(&format!("{kind}: a process of the kernel does its work, not the load\n"));
    }
    let header =
        ["an operation of", "without driver", "with it", "added", "in the handlers", "around them"];
    let table = Table::figures(header, rows).text(width);
    Some(format!(
        "what the driver costs an operation of the load, in instructions, one load after another, \
         probes off\n{table}{notes}"
    ))
}

/// The row of the load at `index`; a figure that cannot be given gets a note.
fn cost_row(series: &Series, index: usize, notes: &mut String) -> Vec<String> {
    let costs: Option<Vec<_>> = series.runs.iter().map(|run| run.driver_costs.get(index)).collect();
    let costs = costs.unwrap_or_default();
    let load = costs.first().map_or(String::new(), |cost| cost.load.to_string());
    let runs: Vec<(f64, f64)> = costs.iter().map(|cost| (cost.without_ns, cost.with_ns)).collect();
    let figure = |value: f64| format!("{value:.1}");
    for (of, what) in [
        (
            (|cost| cost.repeated) as fn(&DriverCost) -> Option<f64>,
            "iterations of instructions that repeat",
        ),
        (|cost| cost.elsewhere, "instructions of the driver outside of system calls"),
    ] {
        let values: Vec<f64> = costs.iter().filter_map(|cost| of(cost)).collect();
        if let Some(value) = median(&values).filter(|value| *value > 0.0) {
            notes.push_str(&format!("{load}: {} {what}\n", figure(value)));
        }
    }
    let mut cells = vec![load.clone()];
    match added(&runs) {
        Added::Cost { without, with } => {
            let within: Option<Vec<f64>> = costs.iter().map(|cost| cost.within).collect();
            let within = within.and_then(|values| median(&values));
            let around = within.map(|within| with - without - within);
            cells.extend([figure(without), figure(with), figure(with - without)]);
            cells.extend([within, around].map(|cell| or_dash(cell.map(figure))));
        }
        Added::Unknown(why) => {
            cells.extend(["-"; 5].map(str::to_owned));
            notes.push_str(&format!("{load}: {why}\n"));
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_probes_say_more_is_told_beyond_the_least() {
        let figures = [
            [Some(9.0), Some(0.0), Some(180.0)],
            [Some(400.0), Some(54.0), Some(629.0)],
            [Some(7.0), Some(0.0), None],
        ];
        assert_eq!(surplus(&figures), [Some((171.0, 0.0)), Some((175.0, 4.0)), None]);
    }

    #[test]
    fn a_driver_that_seems_to_save_time_has_no_cost() {
        assert_eq!(
            added(&[(2_000.0, 5_000.0), (2_010.0, 5_040.0), (2_002.0, 5_010.0)]),
            Added::Cost { without: 2_002.0, with: 5_010.0 }
        );
        let why = |runs: &[(f64, f64)]| match added(runs) {
            Added::Unknown(why) => why,
            Added::Cost { .. } => panic!("{runs:?} has a cost"),
        };
        let reason = why(&[(1_266_546_908.9, 961_791_735.4), (3_700.0, 3_900.0)]);
        assert!(reason.starts_with("in 1 of 2 runs it took no longer with the driver"), "{reason}");
        assert!(why(&[(0.0, 5.0)]).contains("no CPU time"));
        assert!(why(&[(f64::NAN, 5.0)]).contains("no CPU time"));
        assert_eq!(why(&[]), "there is no run");
    }
}
