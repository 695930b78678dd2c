//! A series in any format.

use std::collections::HashSet;

use super::document::Document;
use super::style::Style;
use super::{Format, Look, Unit, recording, repeats};
use crate::recording::{Recording, Series};

/// The view of the only run, of the parts of one, or of all runs together: medians and spreads.
pub(super) fn document(runs: &[Recording], unit: Unit, wide: bool) -> Document {
    let style = Style { unit: self::unit(unit, runs), wide };
    match runs {
        [run] => recording::document(run, style),
        runs if are_parts(runs) => recording::parts(runs, style),
        runs => repeats::document(runs, style),
    }
}

/// The unit that suits the handlers of all runs, so that a column can be compared by eye; without handlers, the operations.
pub(super) fn unit(unit: Unit, runs: &[Recording]) -> Unit {
    match runs.first() {
        Some(first) if first.handlers.is_empty() => unit.for_operations(first),
        _ => unit.for_handlers(runs),
    }
}

/// Whether each has the name of a part, and none has another's.
fn are_parts(runs: &[Recording]) -> bool {
    let mut seen = HashSet::new();
    runs.iter().all(|run| run.part().is_some_and(|part| seen.insert(part)))
}

/// The bytes of `series`; `None` if the format holds one run and there are several.
pub fn render(series: &Series, format: Format, look: &Look) -> Option<Vec<u8>> {
    match (series.runs.as_slice(), format) {
        ([_, _, ..], Format::Json) => Some(series.to_json()),
        (runs, _) => format.render(runs, look),
    }
}

/// Whether `format` holds several runs.
pub fn holds(format: Format) -> bool {
    format != Format::Hgrm
}

/// The text of `series`, made from the recordings alone, so that a run and a later report on its file print the same bytes.
pub fn tables(series: &Series, unit: Unit, width: Option<u16>) -> Vec<u8> {
    document(&series.runs, unit, false).text(width).into_bytes()
}
