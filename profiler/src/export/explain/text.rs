//! Tables for people.

use comfy_table::Row;

use super::grids::{self, Grid};
use super::{ExplainReport, Shown};
use crate::export::cell::clean;
use crate::export::grid::figures;

/// The report as tables; a function stands below its caller, further to the right.
pub(super) fn text(report: &ExplainReport, shown: Shown) -> String {
    let mut text = String::new();
    for (at, handler) in report.handlers.iter().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        for line in grids::summary(report, handler) {
            text.push_str(&clean(&line));
            text.push('\n');
        }
        let tree = grids::tree(handler, shown);
        let tables = if handler.is_difference() {
            [grids::lines(handler), Some(tree)]
        } else {
            [Some(tree), grids::lines(handler)]
        };
        for table in tables.into_iter().flatten() {
            text.push('\n');
            add(&mut text, table, shown.width);
        }
    }
    for note in &report.notes {
        text.push_str(&format!("\nnote: {}\n", clean(note)));
    }
    text
}

fn add(text: &mut String, table: Grid, width: Option<u16>) {
    let rows = table.rows.into_iter().map(|(depth, cells)| {
        let cells = cells.into_iter().enumerate().map(|(column, cell)| match column {
            0 => format!("{}{}", "  ".repeat(depth), clean(&cell)),
            _ => cell,
        });
        Row::from(cells.collect::<Vec<_>>())
    });
    for line in figures(&table.header, rows, width).lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
}
