//! The tables of a recording, or of the parts of one.

use super::document::{Note, Table, or_dash};
use super::style::{Samples, Style, by_handler};
use super::unseen;
use profiler_base::stats::mean;
use profiler_recording::{HandlerRecording, Recording};

/// The tables of a run, or of its parts one after the other.
pub(super) fn tables(runs: &[Recording], style: Style) -> Vec<Table> {
    vec![handlers(runs, style), own(runs, style)]
}

/// What a reader has to know of a run, or of its parts by their names.
pub(super) fn notes(runs: &[Recording]) -> Vec<Note> {
    let mut all = Vec::new();
    for run in runs {
        let warnings = run.warnings.iter().map(|warning| Note::new("warning", &warning.text));
        let notes = unseen::notes(std::slice::from_ref(run)).into_iter().chain(warnings);
        let name = run.part().filter(|_| runs.len() > 1);
        let prefix = name.map_or(String::new(), |name| format!("{name}: "));
        all.extend(notes.map(|note| Note { words: format!("{prefix}{}", note.words), ..note }));
    }
    all
}

/// Calls, rate, durations and losses.
fn handlers(runs: &[Recording], style: Style) -> Table {
    let mut head = ["handler", "count", "calls/s"].map(str::to_owned).to_vec();
    head.extend(style.heads().into_iter().chain(["lost".to_owned()]));
    by_handler(runs, head, |run, handler| {
        let per_second = handler.count as f64 / (run.window_ns as f64 / 1e9);
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
fn own(runs: &[Recording], style: Style) -> Table {
    type Extra = (&'static str, fn(&HandlerRecording) -> Option<u64>);
    let extras: [Extra; 2] = [("repeated", |it| it.repeated), ("ordering", |it| it.ordering)];
    let extras = extras.into_iter().filter(|(_, of)| {
        runs.iter().flat_map(Recording::shown).any(|handler| of(handler) > Some(0))
    });
    let extras: Vec<Extra> = extras.collect();
    let mut head = vec!["handler".to_owned()];
    head.extend(["average", "self average", "within"].map(|name| style.head(name)));
    head.extend(extras.iter().map(|(name, _)| (*name).to_owned()));
    by_handler(runs, head, |_, handler| {
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
