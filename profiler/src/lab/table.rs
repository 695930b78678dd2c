//! The tables of a lab: how far runs are apart, and what the driver costs an operation.

use std::collections::BTreeSet;

use profiler_vm::KernelImage;

use super::subject::{Build, Subject};
use crate::export::document::{Table, or_dash};
use crate::recording::{DriverCost, HandlerRecording, Recording, Series};
use crate::stats::{median, spread};

/// What was measured of a build, and medians and spreads over its runs.
pub fn spreads(series: &Series, build: &Build, kernel: &KernelImage, width: Option<u16>) -> String {
    format!("{}{}", head(series, build, kernel), spread_table(series, width))
}

fn head(series: &Series, build: &Build, kernel: &KernelImage) -> String {
    let boots: BTreeSet<u32> =
        series.runs.iter().filter_map(|run| run.place.as_ref().map(|place| place.boot)).collect();
    let clock = series.runs.first().map_or(String::new(), |run| run.clock.to_string());
    let unit = series.runs.first().map(|run| run.meter).unwrap_or_default().unit();
    let label = if series.label.is_empty() { String::new() } else { format!("{}: ", series.label) };
    let module = series.runs.first().and_then(|run| run.modules.first());
    let id = module.and_then(|module| module.build_id.as_deref()).unwrap_or("unknown");
    let name = match &build.subject {
        command @ Subject::Command(_) => command.to_string(),
        _ => build.name.clone(),
    };
    let params = match build.params.as_str() {
        "" => String::new(),
        params => format!(", {params}"),
    };
    format!(
        "{label}{name} (build id {id}{params}) on Linux {}, clock {clock}, {} runs in {} boots\n\
         medians over the runs in {unit}, and in percent of them how far the runs are apart\n",
        kernel.release,
        series.runs.len(),
        boots.len(),
    )
}

/// Statistics whose spread is given, each with its quantile; the average has none.
const STATISTICS: [(&str, Option<f64>); 4] =
    [("average", None), ("TP90", Some(0.90)), ("TP95", Some(0.95)), ("TP99", Some(0.99))];

/// Every handler that all runs have, in the order of the first.
fn spread_table(series: &Series, width: Option<u16>) -> String {
    let mut header = vec!["handler", "calls"];
    header.extend(STATISTICS.iter().flat_map(|(name, _)| [name, "spread"]));
    let row = |handler: &HandlerRecording| {
        let runs = series.runs.iter().map(|run| same(run, handler));
        let runs: Vec<&HandlerRecording> = runs.collect::<Option<_>>()?;
        let counts = runs.iter().map(|run| run.count);
        let (fewest, most) = (counts.clone().min()?, counts.max()?);
        let calls = if fewest == most { most.to_string() } else { format!("{fewest}..{most}") };
        let mut cells = vec![handler.name.clone(), calls];
        for (_, quantile) in STATISTICS {
            let values = runs.iter().map(|run| match quantile {
                None => run.mean_ns(),
                Some(quantile) => run.quantile_ns(quantile).map(|ns| ns as f64),
            });
            let digits = if quantile.is_none() { 2 } else { 0 };
            // A run without a call has none.
            let found = values.collect::<Option<Vec<f64>>>().and_then(|values| range(&values));
            cells.push(or_dash(found.map(|(median, _)| format!("{median:.digits$}"))));
            cells.push(or_dash(found.map(|(_, spread)| format!("{:.3} %", spread * 100.0))));
        }
        Some(cells)
    };
    let handlers = series.runs.first().map_or(&[][..], |run| &run.handlers);
    Table::figures(header, handlers.iter().filter_map(row)).text(width)
}

/// Median, and largest minus smallest as a share of it.
fn range(values: &[f64]) -> Option<(f64, f64)> {
    Some((median(values)?, spread(values).unwrap_or(0.0)))
}

fn same<'a>(run: &'a Recording, handler: &HandlerRecording) -> Option<&'a HandlerRecording> {
    let is_it = |other: &&HandlerRecording| {
        (&other.name, &other.module) == (&handler.name, &handler.module)
    };
    run.handlers.iter().find(is_it)
}

/// What the driver costs an operation, if that was measured: medians over the runs.
pub fn costs(series: &Series, width: Option<u16>) -> Option<String> {
    let costs = series.runs.iter().map(|run| run.driver_costs.first());
    let costs: Vec<&DriverCost> = costs.collect::<Option<_>>()?;
    let (cells, notes) = cost_row(&costs)?;
    let header =
        ["an operation of", "without driver", "with it", "added", "in the handlers", "around them"];
    let table = Table::figures(header, [cells]).text(width);
    Some(format!(
        "what the driver costs an operation of the load, in instructions, one load after another, \
         probes off\n{table}{notes}"
    ))
}

/// The row of a load, and notes on it. A driver cannot make an operation cheaper: if one run took no longer with it, the differences
/// of the other runs have another cause, too.
fn cost_row(costs: &[&DriverCost]) -> Option<(Vec<String>, String)> {
    let load = costs.first()?.load.to_string();
    let figure = |value: f64| format!("{value:.1}");
    let known = |of: fn(&DriverCost) -> Option<f64>| -> Vec<f64> {
        costs.iter().filter_map(|cost| of(cost)).collect()
    };
    let mut notes = String::new();
    for (values, what) in [
        (known(|cost| cost.repeated), "iterations of instructions that repeat"),
        (known(|cost| cost.elsewhere), "instructions of the driver outside of system calls"),
    ] {
        if let Some(value) = median(&values).filter(|value| *value > 0.0) {
            notes.push_str(&format!("{load}: {} {what}\n", figure(value)));
        }
    }
    let mut cells = vec![load.clone()];
    let no_longer = costs.iter().filter(|cost| cost.added_ns() <= 0.0).count();
    if no_longer == 0 {
        let without = median(&known(|cost| Some(cost.without_ns)))?;
        let with = median(&known(|cost| Some(cost.with_ns)))?;
        let within = known(|cost| cost.within);
        let within = median(&within).filter(|_| within.len() == costs.len());
        cells.extend([without, with, with - without].map(figure));
        cells.extend(
            [within, within.map(|within| with - without - within)]
                .map(|it| or_dash(it.map(figure))),
        );
    } else {
        cells.extend(["-"; 5].map(str::to_owned));
        notes.push_str(&format!(
            "{load}: in {no_longer} of {} runs it took no longer with the driver: the cost cannot be distinguished from zero\n",
            costs.len()
        ));
    }
    Some((cells, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_in_parts_of_the_median() {
        assert_eq!(range(&[101.0, 99.0, 100.0]), Some((100.0, 0.02)));
        assert_eq!(range(&[100.0, 104.0]), Some((102.0, 4.0 / 102.0)));
        assert_eq!(range(&[7.0]), Some((7.0, 0.0)));
        assert_eq!(range(&[]), None);
    }

    #[test]
    fn a_driver_that_seems_to_save_time_has_no_cost() {
        let row = |runs: &[[f64; 2]]| {
            let cost = |[without, with]: &[f64; 2]| -> DriverCost {
                let cost = serde_json::json!({
                    "load": "connect", "operations": 9, "without_instructions": without,
                    "with_instructions": with,
                });
                serde_json::from_value(cost).unwrap()
            };
            let costs: Vec<DriverCost> = runs.iter().map(cost).collect();
            cost_row(&costs.iter().collect::<Vec<_>>()).unwrap()
        };
        let (cells, notes) = row(&[[2_000.0, 5_000.0], [2_010.0, 5_040.0], [2_002.0, 5_010.0]]);
        assert_eq!(cells, ["connect", "2002.0", "5010.0", "3008.0", "-", "-"]);
        assert_eq!(notes, "");
        let (cells, notes) = row(&[[1_266_546_908.9, 961_791_735.4], [3_700.0, 3_900.0]]);
        assert_eq!(cells[1..], ["-"; 5]);
        assert!(notes.contains("in 1 of 2 runs it took no longer with the driver"), "{notes}");
    }
}
