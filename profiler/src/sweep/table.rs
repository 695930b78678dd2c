//! The tables of a sweep: one line a cell, made of the recordings alone.

use super::Cell;
use crate::export::Unit;
use crate::export::document::{Document, Table, or_dash};
use crate::load::{LoadSpec, OperationTimes};
use crate::recording::Recording;
use crate::watch::Watched;

/// Heads of the columns that say which cell it is.
const PLACE: [&str; 3] = ["rate", "workers", "run"];

/// All tables of the cells, which are in order.
pub fn text(cells: &[(Cell, Recording)], unit: Unit, width: Option<u16>) -> String {
    let tables = vec![loads(cells, unit), handlers(cells, unit)];
    Document { tables, ..Document::default() }.text(width)
}

fn place(cell: &Cell) -> Vec<String> {
    vec![
        cell.rate.map_or("max".to_owned(), |rate| rate.to_string()),
        cell.workers.to_string(),
        cell.run.to_string(),
    ]
}

fn loads(cells: &[(Cell, Recording)], unit: Unit) -> Table {
    let latencies = cells.iter().flat_map(|(_, recording)| &recording.loads);
    let means = latencies.filter_map(|load| load.outcome.latency.as_ref()?.service.mean_ns());
    let unit = unit.for_means(means);
    let mut rows = Vec::new();
    for (cell, recording) in cells {
        for load in &recording.loads {
            let outcome = &load.outcome;
            let latency = outcome.latency.as_ref();
            let at = |times: Option<&OperationTimes>, quantile: f64| {
                or_dash(
                    times.and_then(|times| times.quantile_ns(quantile)).map(|ns| unit.exact(ns)),
                )
            };
            let service = latency.map(|latency| &latency.service);
            let response = latency.and_then(|latency| latency.response.as_ref());
            let mut row = place(cell);
            row.push(match &load.spec {
                LoadSpec::Builtin { name, .. } => name.to_string(),
                LoadSpec::Idle => "none".to_owned(),
                _ => "command".to_owned(),
            });
            row.extend([
                or_dash(outcome.held_rate_per_s.map(|rate| format!("{rate:.1}"))),
                format!("{:.2}", outcome.elapsed_ns as f64 / 1e9),
                or_dash(outcome.cpu_ns_per_operation().map(|ns| format!("{:.2}", ns / 1e3))),
                machine_cpu(recording),
                at(service, 0.5),
                at(service, 0.99),
                at(response, 0.99),
            ]);
            rows.push(row);
        }
    }
    let tp50 = format!("TP50 {unit}");
    let figures = [
        "load",
        "held/s",
        "elapsed s",
        "CPU us/op",
        "machine CPU",
        &tp50,
        "TP99",
        "TP99 response time",
    ];
    Table::words(PLACE.into_iter().chain(figures), rows)
}

/// CPU time of the whole machine, as a share of one CPU.
fn machine_cpu(recording: &Recording) -> String {
    let costs = recording.costs.as_ref();
    let machine = costs.and_then(|costs| costs.rows.iter().find(|row| row.of == Watched::Machine));
    match (costs, machine) {
        (Some(costs), Some(row)) if costs.window_ns > 0 => {
            let total = row.total();
            let share = (total.user_ns + total.system_ns) as f64 / costs.window_ns as f64;
            format!("{:.1}%", share * 100.0)
        }
        _ => "-".to_owned(),
    }
}

fn handlers(cells: &[(Cell, Recording)], unit: Unit) -> Table {
    let all = cells.iter().flat_map(|(_, recording)| &recording.handlers);
    let unit = unit.for_means(all.filter_map(|handler| handler.mean_ns()));
    let mut rows = Vec::new();
    for (cell, recording) in cells {
        for handler in &recording.handlers {
            let at = |quantile| or_dash(handler.quantile_ns(quantile).map(|ns| unit.exact(ns)));
            let mut row = place(cell);
            row.extend([
                handler.name.clone(),
                handler.count.to_string(),
                or_dash(handler.mean_ns().map(|ns| unit.average(ns))),
                at(0.90),
                at(0.95),
                at(0.99),
                handler.losses.unmeasured().to_string(),
            ]);
            rows.push(row);
        }
    }
    let average = format!("average {unit}");
    let figures = ["handler", "count", &average, "TP90", "TP95", "TP99", "lost"];
    Table::words(PLACE.into_iter().chain(figures), rows)
}
