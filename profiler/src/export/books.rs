//! The books: what became of every call.

use comfy_table::Row;

use super::{
    cell::{clean, full_name},
    grid,
};
use crate::recording::measure::Losses;
use crate::recording::{Backend, Recording};

const HEADER: [&str; 10] = [
    "handler",
    "backend",
    "carried in",
    "entries",
    "exits",
    "in flight",
    "lost",
    "unpaired",
    "missed",
    "overrun",
];

/// The books of each handler; `width` is the terminal's.
pub(super) fn books(recording: &Recording, width: Option<u16>) -> String {
    // The kernel counts overruns of all functions together, so the sum bounds each handler's.
    let traced =
        recording.handlers.iter().filter(|h| h.backend == Some(Backend::FunctionGraph)).count();
    let overrun = |count: u64| match count {
        1.. if traced > 1 => format!("<={count}"),
        _ => count.to_string(),
    };
    let further = Losses::rare_names(recording.shown().map(|handler| &handler.losses));
    let header = [&HEADER[..], &further].concat();
    let rows = recording.shown().map(|handler| {
        let losses = &handler.losses;
        // Some backends do not learn of every skipped program.
        let unknown = if losses.missed_unknown { "+?" } else { "" };
        let mut row = Row::from([
            clean(&full_name(recording, handler)).into_owned(),
            handler.way(),
            losses.carried_in.to_string(),
            losses.entries.to_string(),
            losses.exits.to_string(),
            losses.in_flight.to_string(),
            losses.lost.to_string(),
            losses.unpaired_exits.to_string(),
            format!("{}{unknown}", losses.missed),
            overrun(losses.overrun),
        ]);
        for name in &further {
            row.add_cell(losses.rare_count(name).into());
        }
        row
    });
    grid::figures(&header, rows, width)
}
