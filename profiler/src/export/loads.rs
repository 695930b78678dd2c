//! Latencies of the loads' operations: the table below that of the handlers.

use super::document::Table;
use super::side::{Side, Style, by_side};
use crate::load::{LoadRun, LoadSpec, OperationTimes};

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
pub(super) fn operations(sides: &[Side<'_>], style: Style) -> Table {
    let unit = sides.iter().map(|side| style.unit.for_operations(side.recording)).max();
    let style = Style { unit: unit.unwrap_or_default(), ..style };
    let mut head = ["operation", "count"].map(str::to_owned).to_vec();
    head.extend(style.heads().chain(["CPU us/op".to_owned()]));
    let all = sides.iter().flat_map(|side| {
        side.recording.loads.iter().flat_map(of_load).map(move |row| (*side, row))
    });
    by_side(
        sides,
        head,
        all.map(|(side, (name, times, cpu))| {
            let quantile = |share| times.quantile_ns(share);
            let mut cells = vec![times.count.to_string()];
            cells.extend(style.cells(times.mean_ns(), quantile, times.max_ns));
            cells.push(cpu.map_or_else(String::new, |ns| format!("{:.2}", ns / 1e3)));
            (side, name, cells)
        }),
    )
}
