//! The view of recordings: of one, of the parts of one, or of several runs.

use std::collections::HashSet;

use super::document::Document;
use super::style::Style;
use super::{Unit, recording, repeats};
use crate::recording::Recording;

/// The view of the only run, of the parts of one, or of all runs together: medians and spreads.
pub(super) fn document(runs: &[Recording], unit: Unit, wide: bool) -> Document {
    let style = Style { unit: self::unit(unit, runs), wide, several: false };
    match runs {
        [run] => recording::document(run, style),
        runs if are_parts(runs) => recording::parts(runs, style),
        runs => repeats::document(runs, Style { several: true, ..style }),
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
