//! The view of recordings: of one, of the parts of one, or of several runs.

use std::collections::HashSet;

use indexmap::IndexMap;

use profiler_base::text::plural;
use profiler_recording::{Meter, Recording};

use super::document::{Document, Note, Table};
use super::handlers::{self, subjects};
use super::style::{Style, subject_of};
use super::{Unit, facts, loads, unseen};

/// The view of the only run, of the parts of one, or of all runs together: medians and spreads.
pub(super) fn document(runs: &[Recording], unit: Unit, wide: bool) -> Document {
    let several = runs.len() > 1 && !are_parts(runs);
    // That of all runs, so that a column can be compared by eye.
    let unit = match runs.iter().all(|run| run.handlers.is_empty()) {
        true => unit.for_operations(runs),
        false => unit.for_handlers(runs),
    };
    let style = Style { unit, wide, several };
    let subjects = &subjects(runs);
    let operations = loads::operations(runs, style);
    let mut tables = vec![handlers::figures(runs, subjects, style)];
    let mut books = Table::default();
    if !several {
        tables.push(handlers::own(subjects, style));
    }
    if wide || !several {
        books = handlers::books(runs, subjects);
    }
    let sections = [("Books", books), ("Operations of the loads", operations)];
    let sections = sections.into_iter().filter_map(|(title, it)| Document::of_table(title, it));
    let meter = runs.first().map_or(Meter::Probes, |run| run.meter);
    Document {
        title: subject_of(meter)[0].to_owned(),
        facts: facts::of(runs, style.unit, several),
        tables,
        sections: sections.collect(),
        notes: notes(runs, several),
        ..Document::default()
    }
}

/// What no run has called, and each warning once, with the runs or parts that have it.
fn notes(runs: &[Recording], several: bool) -> Vec<Note> {
    let mut found: IndexMap<&str, Vec<String>> = IndexMap::new();
    for (number, run) in (1..).zip(runs) {
        let name = run.part().filter(|_| !several).map_or(number.to_string(), str::to_owned);
        for warning in &run.warnings {
            let of = found.entry(&warning.text).or_default();
            if of.last() != Some(&name) {
                of.push(name.clone());
            }
        }
    }
    let warnings = found.into_iter().map(|(text, of)| match of.len() {
        all if all == runs.len() => Note::new("warning", text),
        some if several => {
            Note::new("warning", format!("run{} {}: {text}", plural(some), of.join(", ")))
        }
        _ => Note::new("warning", format!("{}: {text}", of.join(", "))),
    });
    unseen::notes(runs).into_iter().chain(warnings).collect()
}

/// Whether each has the name of a part, and none has another's.
fn are_parts(runs: &[Recording]) -> bool {
    let mut seen = HashSet::new();
    runs.iter().all(|run| run.part().is_some_and(|part| seen.insert(part)))
}
