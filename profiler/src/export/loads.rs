//! Latencies of the loads' operations, and costs of the watched programs: the tables below that of the handlers.

use comfy_table::Row;

use super::cell::{Unit, bytes, clean};
use super::grid;
use crate::load::{LoadRun, LoadSpec, OperationTimes};
use crate::recording::Recording;

/// Latencies of the loads' operations; `None` if no load recorded any.
pub(super) fn operations(recording: &Recording, unit: Unit, width: Option<u16>) -> Option<String> {
    let mut rows = Vec::new();
    for load in &recording.loads {
        let (LoadSpec::Builtin { name, .. }, Some(latency)) = (&load.spec, &load.outcome.latency)
        else {
            continue;
        };
        // A load has one CPU time for both of its rows: the first shows it.
        rows.push(row(&format!("{name}: service time"), &latency.service, unit, cpu(load)));
        if let Some(response) = &latency.response {
            rows.push(row(&format!("{name}: response time"), response, unit, String::new()));
        }
    }
    if rows.is_empty() {
        return None;
    }
    let header = ["operation", "count", "average", "TP90", "TP95", "TP99", "max", "CPU us/op"];
    Some(grid::figures(&header, rows.into_iter(), width))
}

/// CPU time of one operation in microseconds, user mode and kernel.
fn cpu(load: &LoadRun) -> String {
    load.outcome.cpu_ns_per_operation().map_or("-".to_owned(), |ns| format!("{:.2}", ns / 1e3))
}

fn row(name: &str, times: &OperationTimes, unit: Unit, cpu: String) -> Row {
    let duration = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| unit.exact(ns));
    Row::from([
        name.to_owned(),
        times.count.to_string(),
        times.mean_ns().map_or("-".to_owned(), |ns| unit.average(ns)),
        duration(times.quantile_ns(0.90)),
        duration(times.quantile_ns(0.95)),
        duration(times.quantile_ns(0.99)),
        duration(times.max_ns),
        cpu,
    ])
}

/// CPU time, memory and context switches of the watched programs.
pub(super) fn costs(recording: &Recording, width: Option<u16>) -> Option<String> {
    let costs = recording.costs.as_ref()?;
    let window = costs.window_ns.max(1) as f64;
    let rows = costs.rows.iter().map(|row| {
        let total = row.total();
        let cpu = (total.user_ns + total.system_ns) as f64;
        let switches = total
            .voluntary_switches
            .map(|voluntary| voluntary + total.involuntary_switches.unwrap_or(0));
        let mut label = clean(&row.of.label()).into_owned();
        if row.seen > 1 {
            label.push_str(&format!(" ({} processes)", row.seen));
        }
        Row::from([
            label,
            format!("{:.2}", total.user_ns as f64 / 1e9),
            format!("{:.2}", total.system_ns as f64 / 1e9),
            format!("{:.1}%", cpu / window * 100.0),
            row.memory_max_bytes().map_or("-".to_owned(), bytes),
            switches.map_or("-".to_owned(), |count| count.to_string()),
        ])
    });
    let header = ["costs of", "user s", "system s", "of one CPU", "memory", "switches"];
    Some(grid::figures(&header, rows, width))
}
