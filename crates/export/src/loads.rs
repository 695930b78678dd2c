//! Latencies of the loads' operations: the table below that of the handlers.

use indexmap::IndexMap;

use profiler_base::stats::median;
use profiler_load::{LoadRun, LoadSpec, OperationTimes};
use profiler_recording::Recording;

use super::document::Table;
use super::style::{Samples, Style};

/// The operations of a load: each kind of latency with its name, and the CPU time that all have in common.
fn of_load(load: &LoadRun) -> Vec<(String, &OperationTimes, Option<f64>)> {
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
pub(super) fn operations(runs: &[Recording], style: Style) -> Table {
    let style = Style { unit: style.unit.for_operations(runs), ..style };
    // Each has a row of its own, unless they are of several runs.
    let mut rows: IndexMap<(String, usize), (Samples, Vec<f64>)> = IndexMap::new();
    let all = runs.iter().flat_map(|run| &run.loads).flat_map(of_load);
    for (number, (name, times, cpu)) in all.enumerate() {
        let number = if style.several { 0 } else { number };
        let (samples, costs) = rows.entry((name, number)).or_default();
        let whole = (times.count, times.mean_ns(), times.max_ns);
        samples.add(style, whole, |share| times.quantile_ns(share));
        costs.extend(cpu);
    }
    let rows = rows.into_iter().map(|((name, _), (samples, costs))| {
        let cpu = median(&costs).map_or_else(String::new, |ns| format!("{:.2}", ns / 1e3));
        [vec![name], samples.counts(style), samples.cells(style), vec![cpu]].concat()
    });
    let first: &[&str] =
        if style.several { &["operation", "runs", "count"] } else { &["operation", "count"] };
    let mut head: Vec<String> = first.iter().map(|name| (*name).to_owned()).collect();
    head.extend(style.heads().into_iter().chain(["CPU us/op".to_owned()]));
    Table::figures(head, rows)
}
