//! The page of a gate: the decision and its reasons, what changed by how much, and the runs of the handlers that are not simply
//! passed.

use serde::Serialize;

use super::changes::{self, Change};
use super::facts::Fact;
use super::plot;
use super::rows::{Cell, Grid};
use super::{Figure, HandlerSection, Marked, Page};
use crate::export::cell::clean;
use crate::export::compare::describe;
use crate::export::gate;
use crate::export::verdict::{GateReport, figure};
use crate::recording::Meter;
use crate::verdict::{ChangeRecord, Line, Statistic, Verdict};

/// Percent below which a figure that passed did not change.
const LEAST: f64 = 0.05;

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

    /// The line that is drawn: the average, unless another figure decides.
    fn shown(&self) -> Option<&Line<String>> {
        let changes = || {
            self.lines.iter().copied().filter(|line| line.change.is_some() && line.budget.is_none())
        };
        let decides = |line: &&Line<String>| line.verdict == Verdict::Fail || line.improved;
        let average = |line: &&Line<String>| line.statistic == Some(Statistic::Avg);
        changes().find(decides).or_else(|| changes().find(average)).or_else(|| changes().next())
    }

    fn percent(&self) -> f64 {
        self.shown().and_then(|line| line.change.as_ref()?.percent).unwrap_or(0.0)
    }

    /// Whether no figure differs.
    fn is_unchanged(&self) -> bool {
        let mut changes = self.lines.iter().filter_map(|line| line.change.as_ref());
        let is_small =
            |change: &ChangeRecord| change.percent.is_some_and(|percent| percent.abs() < LEAST);
        self.is_passed() && changes.all(is_small)
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
    let weight = |subject: &Subject<'_>| match subject.lines.first() {
        Some(line) if line.verdict == Verdict::Pass && !line.improved => 2,
        Some(line) if line.verdict == Verdict::Fail => 0,
        _ => 1,
    };
    subjects.sort_by(|a, b| {
        weight(a).cmp(&weight(b)).then_with(|| b.percent().abs().total_cmp(&a.percent().abs()))
    });
    let (unchanged, changed): (Vec<_>, Vec<_>) =
        subjects.iter().partition(|subject| subject.is_unchanged());
    let points = gate::points(report).into_iter().map(|(what, words)| (what, owned(&words)));
    let marked = |mark, text: &str| Marked { mark, text: text.to_owned() };
    let sections = subjects.iter().enumerate().filter(|(_, subject)| !subject.is_passed());
    Page {
        title: format!("Handler gate: {}", report.outcome),
        heading: "Handler gate",
        summary_heading: "Changes",
        decision: Some(Decision {
            outcome: report.outcome.to_string(),
            headline: gate::headline_lines(report).iter().map(|line| owned(line)).collect(),
            points: points.collect(),
        }),
        labels: vec![marked("A", "baseline"), marked("B", "candidate")],
        warnings: report.notes.iter().map(|note| marked("", &owned(note))).collect(),
        overview: changes::drawn(
            &changed.iter().filter_map(|subject| drawing(subject)).collect::<Vec<_>>(),
        ),
        summary: summary(&changed),
        unchanged: (!unchanged.is_empty()).then(|| summary(&unchanged)),
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

/// By how much a handler or operation changed.
fn drawing(subject: &Subject<'_>) -> Option<Change> {
    let line = subject.shown()?;
    let change = line.change.as_ref()?;
    let meter = change.meter();
    let (base, candidate) = (change.base?, change.candidate?);
    let statistic = match change.statistic {
        Statistic::Avg => String::new(),
        other => format!(" {other}"),
    };
    let by = change.change.unwrap_or(candidate - base);
    let sign = if by < 0.0 { "" } else { "+" };
    Some(Change {
        name: format!("{}{statistic}", subject.name),
        percent: change.percent?,
        ends: change.percent_bounds,
        limit: line.limit_percent,
        words: format!("{sign}{}, {:+.2} %", figure(by, meter), change.percent?),
        colour: match line.verdict {
            Verdict::Fail => 1,
            _ if line.improved => 2,
            _ => 0,
        },
    })
}

/// One row for each handler.
fn summary(subjects: &[&Subject<'_>]) -> Grid {
    let shown = [Statistic::Avg, Statistic::Tp50, Statistic::Tp90, Statistic::Tp99];
    let mut headers = ["handler", "verdict", "calls"].map(str::to_owned).to_vec();
    for statistic in shown {
        headers.push(format!("{statistic}, baseline"));
        headers.push(format!("{statistic}, candidate"));
        headers.push("change".to_owned());
    }
    let row = |subject: &&Subject<'_>| {
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
