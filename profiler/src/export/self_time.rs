//! The table of `--self-time`: durations without handlers inside and their probes.

use comfy_table::Row;

use super::{
    cell::{Unit, clean, full_name},
    grid,
};
use crate::recording::{HandlerRecording, Meter, Recording, SelfTimeRecording};

const HEADER: [&str; 9] = [
    "handler",
    "average",
    "self average",
    "self TP90",
    "self TP95",
    "self TP99",
    "within",
    "their probes",
    "of average",
];

/// Averages of each handler with a self time, in parts that add up: self time, handlers inside it, and
/// their probes. `None` if there are none.
pub(super) fn self_times(recording: &Recording, unit: Unit, width: Option<u16>) -> Option<String> {
    let header = header(recording);
    let rows: Vec<Row> =
        rows(recording, unit).map(|row| Row::from(row.into_iter().take(header.len()))).collect();
    (!rows.is_empty()).then(|| grid::figures(&header, rows.into_iter(), width))
}

/// The columns: without probes none of theirs, and instructions that repeat where some do.
pub(super) fn header(recording: &Recording) -> Vec<&'static str> {
    let (of_all, of_probes) = HEADER.split_at(HEADER.len() - 2);
    let more = match recording.meter {
        Meter::Probes => of_probes,
        Meter::Exact if recording.shown().any(|it| it.repeated > Some(0)) => &["repeated"],
        Meter::Exact => &[],
    };
    [of_all, more].concat()
}

/// The table's cells.
pub(super) fn rows(recording: &Recording, unit: Unit) -> impl Iterator<Item = [String; 9]> {
    recording.shown().filter_map(move |handler| {
        let name = clean(&full_name(recording, handler)).into_owned();
        Some(cells(name, handler, handler.self_time.as_ref()?, unit))
    })
}

fn cells(
    name: String,
    handler: &HandlerRecording,
    own: &SelfTimeRecording,
    unit: Unit,
) -> [String; 9] {
    let average = |sum| {
        let mean = crate::stats::mean(sum, handler.count);
        mean.map_or("-".to_owned(), |ns| unit.average(ns))
    };
    let quantile = |q| own.quantile_ns(q).map_or("-".to_owned(), |ns| unit.exact(ns));
    let more = match handler.repeated {
        Some(iterations) => crate::stats::mean(iterations, handler.count)
            .map_or("-".to_owned(), |mean| format!("{mean:.1}")),
        None => average(own.probes_ns),
    };
    let share = if handler.sum_ns == 0 {
        "-".to_owned()
    } else {
        format!("{:.1}%", own.probes_ns as f64 / handler.sum_ns as f64 * 100.0)
    };
    [
        name,
        average(handler.sum_ns),
        average(own.sum_ns),
        quantile(0.90),
        quantile(0.95),
        quantile(0.99),
        average(handler.sum_ns.saturating_sub(own.sum_ns.saturating_add(own.probes_ns))),
        more,
        share,
    ]
}
