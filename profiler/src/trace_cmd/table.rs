//! An import as a table for the terminal.

use comfy_table::Row;

use super::collect::Function;
use super::{Import, Percentile};
use crate::export::{cell::clean, grid};
use crate::text::plural;

/// Percentiles of the table.
const PERCENTS: [u32; 3] = [90, 95, 99];

/// The table of `import` in microseconds, with its source above and warnings below. `width` is the
/// terminal's, in columns; `None` never wraps.
#[must_use]
pub fn table(import: &Import, percentile: Percentile, width: Option<u16>) -> String {
    let mut text = String::new();
    let counts = &import.counts;
    let mut format = format!("function_graph text of {}", import.format());
    if let Some(cpus) = counts.cpus {
        format.push_str(&format!(", {cpus} CPU{}", plural(cpus)));
    }
    let calls = import.calls();
    let functions = import.functions.len() as u64;
    let lines = [
        ("file", import.file.clone()),
        ("format", format),
        (
            "records",
            format!(
                "{calls} call{} of {functions} function{} in {} lines",
                plural(calls),
                plural(functions),
                counts.lines
            ),
        ),
        ("percentile", percentile.describe().to_owned()),
        ("unit", "microseconds; from the values themselves".to_owned()),
    ];
    for (label, value) in lines {
        text.push_str(&format!("{label:<10} {}\n", clean(&value)));
    }
    text.push('\n');
    for line in grid(import, percentile, width).lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let warnings = import.warnings();
    if !warnings.is_empty() {
        text.push('\n');
    }
    for warning in warnings {
        text.push_str(&format!("warning: {}\n", clean(&warning.to_string())));
    }
    text
}

fn grid(import: &Import, percentile: Percentile, width: Option<u16>) -> String {
    let header = ["function", "count", "average", "TP90", "TP95", "TP99", "max", "lost"];
    let rows = import.functions.iter().map(|function| row(function, percentile));
    grid::figures(&header, rows, width)
}

fn row(function: &Function, percentile: Percentile) -> Row {
    let values = &function.values;
    let micros = |ps: Option<f64>| ps.map_or("-".to_owned(), |ps| format!("{:.4}", ps / 1e6));
    let sorted = values.sorted();
    let mut cells = vec![
        clean(&function.name).into_owned(),
        values.count().to_string(),
        micros(values.mean_ps()),
    ];
    cells.extend(PERCENTS.map(|percent| micros(sorted.percentile(percent, percentile))));
    cells.push(micros(values.max_ps().map(|ps| ps as f64)));
    cells.push((function.unparsable + function.unreturned).to_string());
    Row::from(cells)
}
