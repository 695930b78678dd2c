//! A comparison as text and Markdown.

use std::fmt::Write as _;

use comfy_table::Row;

use super::cell::clean;
use super::grid;
use super::markdown::escape;
use super::verdict::{CompareReport, PartRecord, SideRecord, figure};
use crate::text::plural;
use crate::verdict::{ChangeRecord, Statistic};

const HEADER: [&str; 8] =
    ["handler", "figure", "baseline", "candidate", "change", "percent", "95 % bounds", "p"];
/// The last but one where calls were counted, which have no p-value.
const PLACEMENTS: &str = "placements";

/// The columns of a report.
fn header(report: &CompareReport) -> Vec<&'static str> {
    let mut header = HEADER.to_vec();
    if is_counted(report) {
        header.splice(HEADER.len() - 2.., [PLACEMENTS]);
    }
    header
}

fn is_counted(report: &CompareReport) -> bool {
    !report.changes.is_empty() && report.changes.iter().all(|change| change.placements.is_some())
}

/// The report as a table for people; `width` is the terminal's, in columns.
#[must_use]
pub fn text(report: &CompareReport, width: Option<u16>) -> String {
    let mut text = heading(&report.parts);
    text.push('\n');
    let mut before = String::new();
    let header = header(report);
    let rows = report.changes.iter().map(|change| {
        let subject = change.subject();
        // A handler's name only on its first line.
        let shown = if subject == before { String::new() } else { clean(&subject).into_owned() };
        before = subject;
        let mut row = cells(change);
        row[0] = shown;
        Row::from(row.into_iter().take(header.len()))
    });
    for line in grid::figures(&header, rows, width).lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push('\n');
    for line in footing(report) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// The report as Markdown, for a comment on a change.
#[must_use]
pub fn markdown(report: &CompareReport) -> String {
    let mut text = "### Handler latency: baseline against candidate\n\n".to_owned();
    for part in &report.parts {
        let _ = writeln!(text, "- {}", markdown_cell(&describe(part)));
    }
    text.push('\n');
    let header = header(report);
    let _ = writeln!(text, "| {} |", header.join(" | "));
    let _ = writeln!(text, "|---|---|{}", "---:|".repeat(header.len() - 2));
    for change in &report.changes {
        let cells = cells(change);
        let cells: Vec<_> =
            cells.iter().take(header.len()).map(|cell| markdown_cell(cell)).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text.push('\n');
    for line in footing(report) {
        let _ = writeln!(text, "{}  ", markdown_cell(&line));
    }
    text
}

/// The compared runs, in lines of `label value`.
pub(super) fn heading(parts: &[PartRecord]) -> String {
    let mut text = String::new();
    for part in parts {
        if let Some(name) = &part.name {
            let _ = writeln!(text, "{:<10} {}", "profile", clean(name));
        }
        for (label, side) in [("baseline", &part.base), ("candidate", &part.candidate)] {
            let runs = side.runs.len();
            let (modules, plural, hosts) = (modules(side), plural(runs), hosts(side));
            let _ = writeln!(text, "{label:<10} {}, {runs} run{plural}{hosts}", clean(&modules));
        }
        let _ = writeln!(text, "{:<10} {}, {} clock", "design", part.words, part.clock);
    }
    text
}

/// The compared runs in one line.
pub(super) fn describe(part: &PartRecord) -> String {
    let name = part.name.as_ref().map_or(String::new(), |name| format!("{name}: "));
    format!(
        "{name}{}{} against {}{}; {}; {} clock",
        modules(&part.base),
        hosts(&part.base),
        modules(&part.candidate),
        hosts(&part.candidate),
        part.words,
        part.clock
    )
}

fn modules(side: &SideRecord) -> String {
    if side.modules.is_empty() { "kernel image".to_owned() } else { side.modules.join(", ") }
}

fn hosts(side: &SideRecord) -> String {
    side.hosts.map_or(String::new(), |hosts| format!(" of {hosts} host{}", plural(hosts)))
}

fn footing(report: &CompareReport) -> Vec<String> {
    let mut lines: Vec<String> =
        report.notes.iter().map(|note| format!("note: {}", clean(note))).collect();
    if is_counted(report) {
        lines.push("median over placements; placements: lowest and highest change".to_owned());
        return lines;
    }
    lines.push(format!(
        "bounds: each holds with {:.0} % confidence (bootstrap of runs); p: exact p-value of the ranks \
         (not adjusted for the number of lines)",
        report.confidence * 100.0
    ));
    if report.changes.iter().all(|change| change.change_bounds.is_none()) {
        lines.push(
            "a side with one run has no bounds, and the change may be chance: measure several runs"
                .to_owned(),
        );
    }
    lines
}

fn cells(change: &ChangeRecord) -> [String; 8] {
    let dash = || "-".to_owned();
    let value = |value: Option<f64>| {
        value.map_or_else(dash, |value| match change.statistic {
            Statistic::Count | Statistic::Repeated => format!("{value:.1}"),
            _ => figure(value, change.meter()),
        })
    };
    let bounds = match change.percent_bounds {
        Some([lower, upper]) => format!("{lower:+.2} .. {upper:+.2} %"),
        None => dash(),
    };
    [
        change.subject(),
        change.statistic.to_string(),
        value(change.base),
        value(change.candidate),
        change.change.map_or_else(dash, |change_by| {
            let sign = if change_by < 0.0 { "" } else { "+" };
            format!("{sign}{}", value(Some(change_by)))
        }),
        change.percent.map_or_else(dash, |percent| format!("{percent:+.2} %")),
        bounds,
        change.p_slower.map_or_else(dash, |p| {
            let faster = change.p_faster.unwrap_or(1.0);
            format!("{:.4}", p.min(faster))
        }),
    ]
}

/// Text for a cell of a Markdown table, with markup and cell borders escaped.
pub(super) fn markdown_cell(text: &str) -> String {
    escape(&clean(text))
}
