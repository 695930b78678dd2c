//! The page of a gate: the decision and its reasons, all handlers before and after on one axis, and the runs of those that
//! are not simply passed.

use serde::Serialize;

use super::facts::Fact;
use super::overview::{self, Figures};
use super::plot;
use super::rows::{Cell, Grid};
use super::{Figure, HandlerSection, Marked, Page};
use crate::export::cell::clean;
use crate::export::compare::describe;
use crate::export::gate;
use crate::export::verdict::{GateReport, figure};
use crate::recording::Meter;
use crate::verdict::{ChangeRecord, Line, Statistic, Verdict};

/// Handlers whose runs are drawn.
const DRAWN: usize = 50;

const NOTE: &str = "Figures are those that the gate compares, over the runs of a side; calls are the candidate's, in all runs; the verdict is the \
                    gravest of the handler's figures.";

/// The decision, above all else.
#[derive(Serialize)]
pub(super) struct Decision {
    outcome: String,
    headline: Vec<String>,
    /// What it is about, and in words.
    points: Vec<(&'static str, String)>,
}

/// All lines of the report on one handler.
struct Subject<'a> {
    name: String,
    lines: Vec<&'a Line<String>>,
}

impl Subject<'_> {
    fn change(&self, statistic: Statistic) -> Option<&ChangeRecord> {
        let mut changes = self.lines.iter().filter_map(|line| line.change.as_ref());
        changes.find(|change| change.statistic == statistic)
    }

    /// The line that decides: the report has them in the order of their weight.
    fn verdict(&self) -> &'static str {
        self.lines.first().map_or("", |line| gate::word(line))
    }

    fn meter(&self) -> Meter {
        self.lines.first().map_or(Meter::Probes, |line| line.meter)
    }

    fn is_passed(&self) -> bool {
        self.lines.iter().all(|line| line.verdict == Verdict::Pass && !line.improved)
    }
}

/// The report as a page.
#[must_use]
pub fn page(report: &GateReport) -> Vec<u8> {
    let owned = |text: &str| clean(text).into_owned();
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    for line in &report.lines {
        let name = owned(&line.subject());
        match subjects.iter_mut().find(|subject| subject.name == name) {
            Some(subject) => subject.lines.push(line),
            None => subjects.push(Subject { name, lines: vec![line] }),
        }
    }
    let points = gate::points(report).into_iter().map(|(what, words)| (what, owned(&words)));
    let marked = |mark, text: &str| Marked { mark, text: text.to_owned() };
    let sections = subjects.iter().enumerate().filter(|(_, subject)| !subject.is_passed());
    Page {
        title: format!("Handler latency gate: {}", report.outcome),
        heading: "Handler latency gate",
        decision: Some(Decision {
            outcome: report.outcome.to_string(),
            headline: gate::headline_lines(report).iter().map(|line| owned(line)).collect(),
            points: points.collect(),
        }),
        labels: vec![marked("A", "baseline"), marked("B", "candidate")],
        warnings: report.notes.iter().map(|note| marked("", &owned(note))).collect(),
        overview: drawing(&subjects),
        summary: summary(&subjects),
        summary_note: NOTE,
        figures: Some(figures(report)),
        handlers: sections.take(DRAWN).map(section).collect(),
        tree_notes: Vec::new(),
        books: None,
        costs: None,
        facts: facts(report),
    }
    .bytes()
}

/// Both sides of each handler, in the unit that most handlers have first.
fn drawing(subjects: &[Subject<'_>]) -> Option<Figure> {
    let meter = subjects.first()?.meter();
    let of = |subject: &Subject<'_>| {
        let side = |value: fn(&ChangeRecord) -> Option<f64>, colour| {
            let at = |statistic| subject.change(statistic).and_then(value);
            let tp50 = at(Statistic::Tp50).or(at(Statistic::Avg))?;
            // A percentile that too few calls have is where the last one is.
            let tp90 = at(Statistic::Tp90).unwrap_or(tp50);
            let tp95 = at(Statistic::Tp95).unwrap_or(tp90);
            let tp99 = at(Statistic::Tp99).unwrap_or(tp95);
            let average = at(Statistic::Avg).unwrap_or(tp50);
            Some(Figures::at(colour, average, [tp50, tp90, tp95, tp99]))
        };
        let sides = [side(|change| change.base, 0), side(|change| change.candidate, 1)];
        let sides: Vec<Figures> = sides.into_iter().flatten().collect();
        (subject.meter() == meter && !sides.is_empty()).then(|| (subject.name.clone(), sides))
    };
    let all: Vec<_> = subjects.iter().filter_map(of).collect();
    overview::drawn(&all, meter, ". The baseline is above the candidate")
}

/// One row for each handler.
fn summary(subjects: &[Subject<'_>]) -> Grid {
    let shown = [Statistic::Avg, Statistic::Tp50, Statistic::Tp90, Statistic::Tp99];
    let mut headers = ["handler", "verdict", "calls"].map(str::to_owned).to_vec();
    for statistic in shown {
        headers.push(format!("{statistic}, baseline"));
        headers.push(format!("{statistic}, candidate"));
        headers.push("change".to_owned());
    }
    let row = |subject: &Subject<'_>| {
        let mut row = vec![Cell::text(&subject.name), Cell::text(subject.verdict())];
        let calls = subject.lines.iter().find_map(|line| line.change.as_ref());
        row.push(calls.map_or_else(Cell::none, |of| Cell::count(of.candidate_calls.total)));
        for statistic in shown {
            let change = subject.change(statistic);
            let value = |of: Option<f64>, meter| {
                of.map_or_else(Cell::none, |of| Cell::figure(figure(of, meter), of))
            };
            let meter = subject.meter();
            row.push(value(change.and_then(|change| change.base), meter));
            row.push(value(change.and_then(|change| change.candidate), meter));
            let percent = change.and_then(|change| change.percent);
            row.push(percent.map_or_else(Cell::none, |of| Cell::figure(format!("{of:+.2} %"), of)));
        }
        row
    };
    Grid::new(headers, subjects.iter().map(row).collect())
}

/// Every figure with its verdict.
fn figures(report: &GateReport) -> Grid {
    let row = |line: &Line<String>| {
        let words =
            [line.subject(), gate::word(line).to_owned(), line.figure(), line.evidence.clone()];
        words.iter().map(|text| Cell::text(clean(text))).collect()
    };
    let rows = report.lines.iter().map(row).collect();
    Grid::new(vec!["handler", "verdict", "figure", "evidence"], rows)
}

/// The runs of a handler on both sides.
fn section((number, subject): (usize, &Subject<'_>)) -> HandlerSection {
    let line = subject.lines.first();
    let plot = |statistic: Statistic| {
        let change = subject.change(statistic)?;
        let runs = [("baseline", &change.base_runs[..]), ("candidate", &change.candidate_runs[..])];
        let svg = plot::runs_of(&runs, subject.meter());
        let label = format!("{statistic} of {} in each run", subject.name);
        Figure::of(svg, label, format!("{statistic} in each run"))
    };
    HandlerSection {
        name: subject.name.clone(),
        anchor: format!("handler-{number}"),
        note: line.map(|line| {
            let words = format!("{}: {} {}", gate::word(line), line.figure(), line.evidence);
            clean(&words).into_owned()
        }),
        plots: [Statistic::Avg, Statistic::Tp99].into_iter().filter_map(plot).collect(),
        trees: Vec::new(),
    }
}

fn facts(report: &GateReport) -> Vec<Fact> {
    let part = |part| Fact::one("compared", &describe(part));
    let mut facts: Vec<Fact> = report.parts.iter().map(part).collect();
    facts.push(Fact::one("rule", &gate::rule(report)));
    facts
}
