//! Latencies of the loads' operations: the table below that of the handlers.

use super::document::Table;
use super::style::Style;
use crate::load::{LoadRun, LoadSpec, OperationTimes};
use crate::recording::Recording;

/// The operations of a load: each kind of latency with its name, and the CPU time that all have in common.
pub(super) fn of_load(load: &LoadRun) -> Vec<(String, &OperationTimes, Option<f64>)> {
    let (LoadSpec::Builtin { name, .. }, Some(latency)) = (&load.spec, &load.outcome.latency)
    else {
        return Vec::new();
    };
    // The first row shows the CPU time.
    let cpu = load.outcome.cpu_ns_per_operation();
    let mut rows = vec![(format!("{name}: service time"), &latency.service, cpu)];
    let response = latency.response.as_ref();
    rows.extend(response.map(|times| (format!("{name}: response time"), times, None)));
    rows
}

/// Latencies of the loads' operations.
pub(super) fn operations(recording: &Recording, style: Style) -> Table {
    let style = Style { unit: style.unit.for_operations(recording), ..style };
    let mut head = ["operation", "count"].map(str::to_owned).to_vec();
    head.extend(style.heads().chain(["CPU us/op".to_owned()]));
    let row = |(name, times, cpu): (String, &OperationTimes, Option<f64>)| {
        let mut cells = vec![name, times.count.to_string()];
        let quantile = |share| times.quantile_ns(share);
        cells.extend(style.cells(times.mean_ns(), quantile, times.max_ns));
        cells.push(cpu.map_or_else(String::new, |ns| format!("{:.2}", ns / 1e3)));
        cells
    };
    Table::figures(head, recording.loads.iter().flat_map(of_load).map(row))
}
