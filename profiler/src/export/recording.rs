//! The view of a recording, of two side by side, or of the parts of one.

use super::document::{Document, Note, Table, or_dash};
use super::side::{Side, Style, by_handler, part, subject_of};
use super::{books, facts, loads, unseen};
use crate::recording::{HandlerRecording, Meter, Recording};
use crate::stats::mean;

/// The view.
pub(super) fn document(sides: &[Side<'_>], style: Style) -> Document {
    let meter = sides.first().map_or(Meter::Probes, |side| side.recording.meter);
    let sections = [
        Document::of_table("Books", books::table(sides)),
        Document::of_table("Operations of the loads", loads::operations(sides, style)),
    ];
    Document {
        title: subject_of(meter)[0].to_owned(),
        facts: facts::of(sides, style.unit),
        tables: vec![handlers(sides, style), own(sides, style)],
        sections: sections.into_iter().flatten().collect(),
        notes: sides.iter().flat_map(notes).collect(),
        ..Document::default()
    }
}

fn notes(side: &Side<'_>) -> Vec<Note> {
    let of = |what: &str| {
        if side.mark.is_empty() { what.to_owned() } else { format!("{}: {what}", side.mark) }
    };
    let warnings = side.recording.warnings.iter();
    let unseen = unseen::notes(side.recording).into_iter();
    unseen
        .map(|note| Note { what: of(&note.what), ..note })
        .chain(warnings.map(|warning| Note::new(of("warning"), &warning.text)))
        .collect()
}

/// Durations; of two recordings with the change from the first to the second.
fn handlers(sides: &[Side<'_>], style: Style) -> Table {
    let both = sides.len() > 1;
    let mut head = ["handler", "count", "calls/s"].map(str::to_owned).to_vec();
    head.extend(style.heads());
    if both {
        head.extend(["average, change", "TP99, change"].map(str::to_owned));
    }
    head.push("lost".to_owned());
    by_handler(sides, head, |side, handler| {
        let mut cells = row(side.recording, handler, style);
        if both {
            let first = sides.first().filter(|first| first.number != side.number);
            let first = first.and_then(|first| {
                first
                    .recording
                    .handlers
                    .iter()
                    .find(|of| of.name == handler.name && of.module == handler.module)
            });
            let tp99 = |of: &HandlerRecording| of.quantile_ns(0.99).map(|ns| ns as f64);
            cells.push(change(first.and_then(HandlerRecording::mean_ns), handler.mean_ns()));
            cells.push(change(first.and_then(tp99), tp99(handler)));
        }
        cells.push(lost(handler));
        Some(cells)
    })
}

/// Calls, rate and durations of a handler.
fn row(recording: &Recording, handler: &HandlerRecording, style: Style) -> Vec<String> {
    let per_second = handler.count as f64 / (recording.window_ns as f64 / 1e9);
    let quantile = |share| handler.quantile_ns(share);
    let mut cells = vec![handler.count.to_string(), format!("{per_second:.1}")];
    cells.extend(style.cells(handler.mean_ns(), quantile, handler.max_ns));
    cells
}

fn change(from: Option<f64>, to: Option<f64>) -> String {
    match (from, to) {
        (Some(from), Some(to)) if from > 0.0 => format!("{:+.2} %", (to - from) / from * 100.0),
        _ => String::new(),
    }
}

/// Lost calls, with their share of all calls.
fn lost(handler: &HandlerRecording) -> String {
    let lost = handler.losses.unmeasured();
    if lost == 0 {
        return "0".to_owned();
    }
    let share = handler.losses.share(handler.count) * 100.0;
    if share < 0.01 { format!("{lost} (<0.01%)") } else { format!("{lost} ({share:.2}%)") }
}

/// What handlers ran themselves, where instructions were counted: averages that add up. Instructions that repeat, and those that order
/// others, have a column each where there are some.
fn own(sides: &[Side<'_>], style: Style) -> Table {
    let shown = sides.iter().flat_map(|side| side.recording.shown());
    type Extra = (&'static str, fn(&HandlerRecording) -> Option<u64>);
    let extras: [Extra; 2] = [("repeated", |it| it.repeated), ("ordering", |it| it.ordering)];
    let shown: Vec<_> = shown.collect();
    let has = |(_, of): &Extra| shown.iter().any(|handler| of(handler) > Some(0));
    let extras: Vec<Extra> = extras.into_iter().filter(has).collect();
    let mut head = vec!["handler".to_owned()];
    head.extend(["average", "self average", "within"].map(|name| style.head(name)));
    head.extend(extras.iter().map(|(name, _)| (*name).to_owned()));
    by_handler(sides, head, |_, handler| {
        let own = handler.own_instructions?;
        let within = handler.sum_ns.saturating_sub(own);
        let sums = [handler.sum_ns, own, within];
        let mut cells = sums.map(|sum| style.average(mean(sum, handler.count))).to_vec();
        cells.extend(extras.iter().map(|(_, of)| {
            let mean = of(handler).and_then(|sum| mean(sum, handler.count));
            or_dash(mean.map(|mean| format!("{mean:.1}")))
        }));
        Some(cells)
    })
}

/// The view of the parts of a run, each with its own window: one table, and loads and warnings by part.
pub(super) fn parts(parts: &[Recording], style: Style) -> Document {
    let mut table = Table::default();
    let mut all_notes = Vec::new();
    for run in parts {
        let side = Side::only(run);
        let Table { head, rows, .. } = handlers(&[side], style);
        table.head = head;
        table.rows.extend(rows);
        let name = part(run).unwrap_or_default();
        let of_part = |note: Note| Note { words: format!("{name}: {}", note.words), ..note };
        all_notes.extend(notes(&side).into_iter().map(of_part));
    }
    let meter = parts.first().map_or(Meter::Probes, |run| run.meter);
    Document {
        title: subject_of(meter)[0].to_owned(),
        facts: facts::of_parts(parts, style.unit),
        tables: vec![table],
        notes: all_notes,
        ..Document::default()
    }
}
