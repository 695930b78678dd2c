//! A series in any format.

use super::{Exporter as _, Format, Look, Table, Unit, repeats, table};
use crate::recording::Series;

/// The bytes of `series`; `None` if the format holds one run and there are several.
#[must_use]
pub fn render(series: &Series, format: Format, look: &Look) -> Option<Vec<u8>> {
    let exporter = format.exporter(look);
    match (series.runs.as_slice(), format) {
        ([recording], _) => Some(exporter.serialize(recording)),
        (_, Format::Table) => Some(tables(series, look.unit, look.width)),
        (_, Format::Json) => Some(series.to_json()),
        (runs, _) => exporter.serialize_runs(runs),
    }
}

/// Whether `format` holds several runs.
#[must_use]
pub fn holds(format: Format) -> bool {
    let exporter = || format.exporter(&Look::default());
    matches!(format, Format::Table | Format::Json) || exporter().serialize_runs(&[]).is_some()
}

/// The table of the only run, of the parts of one, or of all runs together: medians and spreads.
#[must_use]
pub fn tables(series: &Series, unit: Unit, width: Option<u16>) -> Vec<u8> {
    match series.runs.as_slice() {
        [recording] => Table { unit, width }.serialize(recording),
        parts if series.is_of_parts() => table::of_parts(parts, unit, width),
        runs => repeats::table(runs, unit, width),
    }
}
