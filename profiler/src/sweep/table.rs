//! The table of a sweep: one line a cell, made of the recordings alone.

use super::Cell;
use crate::export::Unit;
use crate::export::grid::words as grid;
use crate::load::{LoadSpec, OperationTimes};
use crate::recording::Recording;
use crate::watch::Watched;

/// All tables of the cells, which are in order.
#[must_use]
pub fn text(cells: &[(Cell, Recording)], unit: Unit, width: Option<u16>) -> String {
    let mut text = loads(cells, unit, width);
    if cells.iter().any(|(_, recording)| !recording.handlers.is_empty()) {
        text.push('\n');
        text.push_str(&handlers(cells, unit, width));
    }
    text
}

fn place(cell: &Cell) -> Vec<String> {
    vec![
        cell.rate.map_or("max".to_owned(), |rate| rate.to_string()),
        cell.workers.to_string(),
        cell.run.to_string(),
    ]
}

fn loads(cells: &[(Cell, Recording)], unit: Unit, width: Option<u16>) -> String {
    let latencies = cells.iter().flat_map(|(_, recording)| &recording.loads);
    let means = latencies.filter_map(|load| load.outcome.latency.as_ref()?.service.mean_ns());
    let unit = unit.for_means(means);
    let mut rows = Vec::new();
    for (cell, recording) in cells {
        for load in &recording.loads {
            let outcome = &load.outcome;
            let latency = outcome.latency.as_ref();
            let at = |times: Option<&OperationTimes>, quantile: f64| {
                let value = times.and_then(|times| times.quantile_ns(quantile));
                value.map_or("-".to_owned(), |ns| unit.exact(ns))
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
                outcome.held_rate_per_s.map_or("-".to_owned(), |rate| format!("{rate:.1}")),
                format!("{:.2}", outcome.elapsed_ns as f64 / 1e9),
                outcome
                    .cpu_ns_per_operation()
                    .map_or("-".to_owned(), |ns| format!("{:.2}", ns / 1e3)),
                machine_cpu(recording),
                at(service, 0.5),
                at(service, 0.99),
                at(response, 0.99),
            ]);
            rows.push(row);
        }
    }
    let service_50 = format!("TP50 {unit}");
    let header = [
        "rate",
        "workers",
        "run",
        "load",
        "held/s",
        "elapsed s",
        "CPU us/op",
        "machine CPU",
        &service_50,
        "TP99",
        "TP99 response time",
    ];
    grid(&header, rows, width)
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

fn handlers(cells: &[(Cell, Recording)], unit: Unit, width: Option<u16>) -> String {
    let all = cells.iter().flat_map(|(_, recording)| &recording.handlers);
    let unit = unit.for_means(all.filter_map(|handler| handler.mean_ns()));
    let mut rows = Vec::new();
    for (cell, recording) in cells {
        for handler in &recording.handlers {
            let at = |quantile| {
                handler.quantile_ns(quantile).map_or("-".to_owned(), |ns| unit.exact(ns))
            };
            let mut row = place(cell);
            row.extend([
                crate::export::cell::clean(&handler.name).into_owned(),
                handler.count.to_string(),
                handler.mean_ns().map_or("-".to_owned(), |ns| unit.average(ns)),
                at(0.90),
                at(0.95),
                at(0.99),
                handler.losses.unmeasured().to_string(),
            ]);
            rows.push(row);
        }
    }
    let average = format!("average {unit}");
    let header =
        ["rate", "workers", "run", "handler", "count", &average, "TP90", "TP95", "TP99", "lost"];
    grid(&header, rows, width)
}
