//! The table of what handlers ran themselves, where instructions were counted.

use comfy_table::Row;

use super::{
    cell::{Unit, clean, full_name},
    grid,
};
use crate::recording::Recording;
use crate::stats::mean;

const HEADER: [&str; 5] = ["handler", "average", "self average", "within", "repeated"];

/// Averages of each handler, which its own instructions and those within add up to. `None` where none were counted.
pub(super) fn table(recording: &Recording, unit: Unit, width: Option<u16>) -> Option<String> {
    let rows: Vec<Row> = rows(recording, unit).map(Row::from).collect();
    (!rows.is_empty()).then(|| grid::figures(header(recording), rows.into_iter(), width))
}

/// The columns: instructions that repeat where some do.
pub(super) fn header(recording: &Recording) -> &'static [&'static str] {
    let repeats = recording.shown().any(|handler| handler.repeated > Some(0));
    &HEADER[..if repeats { HEADER.len() } else { HEADER.len() - 1 }]
}

/// The table's cells.
pub(super) fn rows(recording: &Recording, unit: Unit) -> impl Iterator<Item = Vec<String>> {
    let columns = header(recording).len();
    recording.shown().filter_map(move |handler| {
        let own = handler.own_instructions?;
        let average =
            |sum| mean(sum, handler.count).map_or("-".to_owned(), |mean| unit.average(mean));
        let repeated = handler.repeated.and_then(|iterations| mean(iterations, handler.count));
        let mut cells = vec![
            clean(&full_name(recording, handler)).into_owned(),
            average(handler.sum_ns),
            average(own),
            average(handler.sum_ns.saturating_sub(own)),
            repeated.map_or("-".to_owned(), |mean| format!("{mean:.1}")),
        ];
        cells.truncate(columns);
        Some(cells)
    })
}
