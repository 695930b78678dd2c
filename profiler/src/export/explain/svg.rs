//! Flame graphs: the wider a function, the more it takes; of two recordings red took more, and blue less.

use std::io;

use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use super::ExplainReport;
use super::folded::folded;
use crate::export::cell::clean;

/// Draws all handlers side by side.
pub(super) fn flame_graph(report: &ExplainReport) -> io::Result<Vec<u8>> {
    let folded = folded(report);
    let mut options = Options::default();
    let names: Vec<&str> = report.recordings.iter().map(|recording| &*recording.name).collect();
    let handlers: Vec<String> = report.handlers.iter().map(|of| of.handler.to_string()).collect();
    options.title = clean(&handlers.join(", ")).into_owned();
    options.subtitle = Some(clean(&names.join(" → ")).into_owned());
    options.count_name.clone_from(&report.unit);
    options.text_truncate_direction = TextTruncateDirection::Right;
    // Equal reports are equal files.
    options.deterministic = true;
    // Keeps the order of the lines, from the last to the first.
    options.flame_chart = true;
    let lines: Vec<&str> = folded.lines().rev().collect();
    let mut svg = Vec::new();
    from_lines(&mut options, lines, &mut svg)?;
    Ok(svg)
}
