//! The view of a comparison.

use profiler_base::text::plural;
use profiler_verdict::{ChangeRecord, Statistic, figure};

use super::document::{Document, Note, Table, or_dash};
use super::verdict::{CompareReport, PartRecord, SideRecord};

/// The view of `report`.
pub fn document(report: &CompareReport) -> Document {
    let is_counted = !report.changes.is_empty()
        && report.changes.iter().all(|change| change.placements.is_some());
    let mut head = vec!["handler", "figure", "baseline", "candidate", "change", "percent"];
    match is_counted {
        // Counted calls have no p-value.
        true => head.push("placements"),
        false => head.extend(["95 % bounds", "p"]),
    }
    let columns = head.len();
    let rows = report.changes.iter().map(|it| cells(it).into_iter().take(columns).collect());
    Document {
        title: "Handler latency: baseline against candidate".to_owned(),
        facts: report.parts.iter().flat_map(facts).collect(),
        tables: vec![Table::figures(head, rows)],
        notes: notes(report, is_counted),
        ..Document::default()
    }
}

/// The compared runs.
pub(super) fn facts(part: &PartRecord) -> Vec<Note> {
    let mut facts: Vec<Note> = part.name.iter().map(|name| Note::new("profile", name)).collect();
    for (label, side) in [("baseline", &part.base), ("candidate", &part.candidate)] {
        let runs = side.runs.len();
        let hosts =
            side.hosts.map_or(String::new(), |hosts| format!(" of {hosts} host{}", plural(hosts)));
        let words = format!("{}, {runs} run{}{hosts}", modules(side), plural(runs));
        facts.push(Note::new(label, words));
    }
    facts.push(Note::new("design", format!("{}, {} clock", part.words, part.clock)));
    facts
}

fn modules(side: &SideRecord) -> String {
    if side.modules.is_empty() { "kernel image".to_owned() } else { side.modules.join(", ") }
}

fn notes(report: &CompareReport, is_counted: bool) -> Vec<Note> {
    let mut notes: Vec<Note> = report.notes.iter().map(|note| Note::new("note", note)).collect();
    if is_counted {
        let words =
            "the lowest and the highest change; all other figures are medians over placements";
        notes.push(Note::new("placements", words));
        return notes;
    }
    let words = format!(
        "each holds with {:.0} % confidence (bootstrap of runs); p: exact p-value of the ranks (not adjusted for \
         the number of lines)",
        report.confidence * 100.0
    );
    notes.push(Note::new("bounds", words));
    if report.changes.iter().all(|change| change.change_bounds.is_none()) {
        let words =
            "a side with one run has no bounds, and the change may be chance: measure several runs";
        notes.push(Note::new("note", words));
    }
    notes
}

fn cells(change: &ChangeRecord) -> [String; 8] {
    let value = |value: f64| match change.statistic {
        Statistic::Count | Statistic::Repeated => format!("{value:.1}"),
        _ => figure(value, change.meter()),
    };
    let by = change.change.map(|by| format!("{}{}", if by < 0.0 { "" } else { "+" }, value(by)));
    let p = change.p_slower.map(|p| p.min(change.p_faster.unwrap_or(1.0)));
    [
        change.subject(),
        change.statistic.to_string(),
        or_dash(change.base.map(value)),
        or_dash(change.candidate.map(value)),
        or_dash(by),
        or_dash(change.percent.map(|percent| format!("{percent:+.2} %"))),
        or_dash(change.percent_bounds.map(|[low, high]| format!("{low:+.2} .. {high:+.2} %"))),
        or_dash(p.map(|p| format!("{p:.4}"))),
    ]
}
