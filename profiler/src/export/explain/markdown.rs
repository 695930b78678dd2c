//! Markdown for a comment on a change.

use super::grids::{self, Grid};
use super::{ExplainReport, Shown};
use crate::export::compare::markdown_cell;

/// The report as Markdown; a function stands below its caller, further to the right.
pub(super) fn markdown(report: &ExplainReport, shown: Shown) -> String {
    let mut text = String::new();
    for handler in &report.handlers {
        text.push_str(&format!("### {}\n\n", markdown_cell(&handler.handler.to_string())));
        for line in grids::summary(report, handler) {
            text.push_str(&format!("- {}\n", markdown_cell(&line)));
        }
        if let Some(lines) = grids::lines(handler) {
            add(&mut text, &lines);
        }
        add(&mut text, &grids::tree(handler, shown));
        text.push('\n');
    }
    for note in &report.notes {
        text.push_str(&format!("- note: {}\n", markdown_cell(note)));
    }
    text
}

fn add(text: &mut String, table: &Grid) {
    text.push_str(&format!("\n| {} |\n|:--|", table.header.join(" | ")));
    text.push_str(&"--:|".repeat(table.header.len() - 1));
    text.push('\n');
    for (depth, cells) in &table.rows {
        let cells: Vec<String> = cells.iter().map(|cell| markdown_cell(cell)).collect();
        text.push_str(&format!("| {}{} |\n", "&emsp;".repeat(*depth), cells.join(" | ")));
    }
}
