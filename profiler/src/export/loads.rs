//! Latencies of the loads' operations, and costs of the watched programs: the tables below that of the handlers.

use super::document::{Table, or_dash};
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

const COSTS: &str = "Memory is resident memory for processes, and memory that is not available for the machine. CPU time is read in \
                     steps of the kernel's tick, usually 10 ms";

/// CPU time, memory and context switches of the watched programs.
pub(super) fn costs(sides: &[Side<'_>]) -> Table {
    let head = ["costs of", "user s", "system s", "of one CPU", "memory", "switches"];
    let all = sides.iter().flat_map(|side| {
        let costs = side.recording.costs.iter();
        costs.flat_map(move |costs| costs.rows.iter().map(move |row| (*side, costs, row)))
    });
    let dashed = if sides.len() > 1 { "; the curves of B are dashed" } else { "" };
    let table = by_side(
        sides,
        head.map(str::to_owned).to_vec(),
        all.map(|(side, costs, row)| {
            let total = row.total();
            let cpu = (total.user_ns + total.system_ns) as f64;
            let share = cpu / costs.window_ns.max(1) as f64 * 100.0;
            let voluntary = total.voluntary_switches;
            let switches = voluntary.map(|count| count + total.involuntary_switches.unwrap_or(0));
            let mut label = row.of.label();
            if row.seen > 1 {
                label.push_str(&format!(" ({} processes)", row.seen));
            }
            let cells = vec![
                format!("{:.2}", total.user_ns as f64 / 1e9),
                format!("{:.2}", total.system_ns as f64 / 1e9),
                format!("{share:.1}%"),
                or_dash(
                    row.memory_max_bytes()
                        .map(|held| format!("{:.1} MiB", held as f64 / 1_048_576.0)),
                ),
                or_dash(switches.map(|count| count.to_string())),
            ];
            (side, label, cells)
        }),
    );
    Table { note: format!("{COSTS}{dashed}."), ..table }
}
