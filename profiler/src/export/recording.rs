//! The view of a recording, or of the parts of one.

use super::document::{Document, Note, Table, or_dash};
use super::style::{Samples, Style, by_handler, subject_of};
use super::{books, facts, loads, unseen};
use crate::recording::{HandlerRecording, Meter, Recording};
use crate::stats::mean;

/// The view.
pub(super) fn document(recording: &Recording, style: Style) -> Document {
    let sections = [
        Document::of_table("Books", books::table(recording)),
        Document::of_table(
            "Operations of the loads",
            loads::operations(std::slice::from_ref(recording), style),
        ),
    ];
    Document {
        title: subject_of(recording.meter)[0].to_owned(),
        facts: facts::of(recording, style.unit),
        tables: vec![handlers(recording, style), own(recording, style)],
        sections: sections.into_iter().flatten().collect(),
        notes: notes(recording).collect(),
        ..Document::default()
    }
}

fn notes(recording: &Recording) -> impl Iterator<Item = Note> {
    let warnings = recording.warnings.iter();
    let warnings = warnings.map(|warning| Note::new("warning", &warning.text));
    unseen::notes(recording).into_iter().chain(warnings)
}

/// Calls, rate, durations and losses.
fn handlers(recording: &Recording, style: Style) -> Table {
    let mut head = ["handler", "count", "calls/s"].map(str::to_owned).to_vec();
    head.extend(style.heads().into_iter().chain(["lost".to_owned()]));
    by_handler(recording, head, |handler| {
        let per_second = handler.count as f64 / (recording.window_ns as f64 / 1e9);
        let mut samples = Samples::default();
        samples.add_handler(style, handler);
        let mut cells = vec![handler.count.to_string(), format!("{per_second:.1}")];
        cells.extend(samples.cells(style));
        cells.push(lost(handler));
        Some(cells)
    })
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
fn own(recording: &Recording, style: Style) -> Table {
    type Extra = (&'static str, fn(&HandlerRecording) -> Option<u64>);
    let extras: [Extra; 2] = [("repeated", |it| it.repeated), ("ordering", |it| it.ordering)];
    let has = |(_, of): &Extra| recording.shown().any(|handler| of(handler) > Some(0));
    let extras: Vec<Extra> = extras.into_iter().filter(has).collect();
    let mut head = vec!["handler".to_owned()];
    head.extend(["average", "self average", "within"].map(|name| style.head(name)));
    head.extend(extras.iter().map(|(name, _)| (*name).to_owned()));
    by_handler(recording, head, |handler| {
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
        let Table { head, rows, .. } = handlers(run, style);
        table.head = head;
        table.rows.extend(rows);
        let name = run.part().unwrap_or_default();
        let of_part = |note: Note| Note { words: format!("{name}: {}", note.words), ..note };
        all_notes.extend(notes(run).map(of_part));
    }
    let meter = parts.first().map_or(Meter::Probes, |run| run.meter);
    Document {
        title: subject_of(meter)[0].to_owned(),
        facts: facts::of_several(parts, style.unit, true),
        tables: vec![table],
        notes: all_notes,
        ..Document::default()
    }
}
