//! The view of recordings: of one, of the parts of one, or of several runs.

use std::collections::HashSet;

use super::document::{Document, Table};
use super::style::{Style, subject_of};
use super::{Unit, books, facts, loads, recording, repeats};
use profiler_recording::{Meter, Recording};

/// The view of the only run, of the parts of one, or of all runs together: medians and spreads.
pub(super) fn document(runs: &[Recording], unit: Unit, wide: bool) -> Document {
    let several = runs.len() > 1 && !are_parts(runs);
    let style = Style { unit: self::unit(unit, runs), wide, several };
    let operations = loads::operations(runs, style);
    let (tables, books, notes) = if several {
        let books = if wide { repeats::books(runs) } else { Table::default() };
        (vec![repeats::handlers(runs, style)], books, repeats::notes(runs))
    } else {
        (recording::tables(runs, style), books::table(runs), recording::notes(runs))
    };
    let sections = [("Books", books), ("Operations of the loads", operations)];
    let sections = sections.into_iter().filter_map(|(title, it)| Document::of_table(title, it));
    let meter = runs.first().map_or(Meter::Probes, |run| run.meter);
    Document {
        title: subject_of(meter)[0].to_owned(),
        facts: match runs {
            [run] => facts::of(run, style.unit),
            _ => facts::of_several(runs, style.unit, !several),
        },
        tables,
        sections: sections.collect(),
        notes,
        ..Document::default()
    }
}

/// The unit that suits the handlers of all runs, so that a column can be compared by eye; without handlers, the operations.
pub(super) fn unit(unit: Unit, runs: &[Recording]) -> Unit {
    match runs.first() {
        Some(first) if first.handlers.is_empty() => unit.for_operations(runs),
        _ => unit.for_handlers(runs),
    }
}

/// Whether each has the name of a part, and none has another's.
fn are_parts(runs: &[Recording]) -> bool {
    let mut seen = HashSet::new();
    runs.iter().all(|run| run.part().is_some_and(|part| seen.insert(part)))
}
