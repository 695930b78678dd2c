//! The page of a gate: the decision and its reasons, what changed by how much, and the runs of the handlers that are not simply
//! passed.

use profiler_verdict::{ChangeRecord, Line, Statistic, Verdict, figure, signed};

use super::drawing::{Axis, INK, Plot, series};
use super::plot;
use crate::cell::clean;
use crate::document::{Document, Figure, Row, Table, or_dash};
use crate::gate;
use crate::verdict::GateReport;

/// Percent below which a figure that passed did not change.
const LEAST: f64 = 0.05;

/// Handlers whose runs are drawn.
const DRAWN: usize = 50;

/// Width of the figures beside the changes.
const FIGURES: f64 = 300.0;

const CAPTION: &str = "Change from baseline to candidate: orange is beyond its limit, green is faster, blue is within. The thin line is \
                       the range over placements or the bounds, the upright stroke the limit";

const NOTE: &str = "Figures are those that the gate compares, over the runs of a side; calls are the candidate's, in all runs; the verdict is the \
                    gravest of the handler's figures.";

/// All lines of the report on one handler or operation, at least one, in the order of their weight.
struct Subject<'a> {
    name: String,
    lines: Vec<&'a Line>,
}

impl<'a> Subject<'a> {
    fn changes(&self) -> impl Iterator<Item = &'a ChangeRecord> {
        self.lines.iter().filter_map(|line| line.change.as_ref())
    }

    fn change(&self, statistic: Statistic) -> Option<&'a ChangeRecord> {
        self.changes().find(|change| change.statistic == statistic)
    }

    /// The line that is drawn, and its change in percent: the average, unless another figure decides.
    fn shown(&self) -> Option<(&'a Line, &'a ChangeRecord, f64)> {
        let lines = self.lines.iter().filter(|line| line.budget.is_none());
        let changes = lines.filter_map(|line| Some((*line, line.change.as_ref()?)));
        let (line, change) = changes.min_by_key(|(line, _)| line.rank())?;
        Some((line, change, change.percent?))
    }

    /// Whether no figure differs.
    fn is_unchanged(&self) -> bool {
        let mut percents = self.changes().map(|of| of.percent);
        self.is_passed() && percents.all(|of| of.is_some_and(|percent| percent.abs() < LEAST))
    }

    fn is_passed(&self) -> bool {
        self.lines.iter().all(|line| line.verdict == Verdict::Pass && !line.improved)
    }

    /// What failed comes first, and what passed last.
    fn rank(&self) -> u8 {
        match self.lines[0].verdict {
            Verdict::Pass if !self.lines[0].improved => 2,
            Verdict::Fail => 0,
            _ => 1,
        }
    }
}

/// The handlers and operations, those first that decide and changed most.
fn subjects(report: &GateReport) -> Vec<Subject<'_>> {
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    for line in &report.lines {
        let name = clean(&line.subject()).into_owned();
        match subjects.iter_mut().find(|subject| subject.name == name) {
            Some(subject) => subject.lines.push(line),
            None => subjects.push(Subject { name, lines: vec![line] }),
        }
    }
    let percent = |of: &Subject<'_>| of.shown().map_or(0.0, |(.., percent)| percent.abs());
    subjects
        .sort_by(|a, b| a.rank().cmp(&b.rank()).then_with(|| percent(b).total_cmp(&percent(a))));
    subjects
}

pub fn page(report: &GateReport) -> Vec<u8> {
    let subjects = subjects(report);
    let changes = Figure::of(changes(&subjects), CAPTION);
    let undecided = subjects.iter().filter(|subject| !subject.is_passed());
    let mut document = gate::document(report);
    document.plots.extend(changes.map(|it| Figure { wide: true, ..it }));
    document.tables = vec![summary(&subjects), gate::figures(report, true)];
    document.sections = undecided.take(DRAWN).map(section).collect();
    document.page()
}

/// What changed, a bar for each handler and operation, with its figures beside it.
fn changes(subjects: &[Subject<'_>]) -> Option<String> {
    let changed = subjects.iter().filter(|subject| !subject.is_unchanged());
    let all: Vec<_> = changed.filter_map(|of| Some((&of.name, of.shown()?))).collect();
    let values = all.iter().flat_map(|(_, (_, change, percent))| {
        change.percent_bounds.into_iter().flatten().chain([*percent])
    });
    let (low, high) = (values.clone().fold(0.0, f64::min), values.fold(0.0, f64::max));
    let edge = ((high - low) * 0.04).max(0.01);
    let (low, high) = (if low < 0.0 { low - edge } else { low }, high + edge);
    let format = |x: f64| format!("{:+} %", (x * 1e6).round() / 1e6);
    let axis = Axis { what: "change in percent", ..Axis::linear([low, high], 6, format) };
    let mut plot = Plot::of_rows(all.len(), FIGURES, axis);
    plot.line(&[(0.0, 0.0), (0.0, all.len() as f64)], INK, 1);
    for (number, (name, (line, change, percent))) in all.iter().enumerate() {
        let by = signed(change.change?, change.meter());
        plot.row(number, &named(name, change.statistic), &format!("{by}, {percent:+.2} %"));
        let y = number as f64 + 0.5;
        let colour = series(match line.verdict {
            Verdict::Fail => 1,
            _ if line.improved => 2,
            _ => 0,
        });
        plot.bar((0.0, y - 0.25), (*percent, y + 0.25), colour, 1.0);
        plot.line(&[(0.0, y - 0.25), (*percent, y - 0.25), (*percent, y + 0.25)], colour, 1);
        if let Some([from, to]) = change.percent_bounds.filter(|[from, to]| from != to) {
            plot.line(&[(from, y), (to, y)], INK, 1);
        }
        if let Some(limit) = line.limit_percent.filter(|limit| *limit < high) {
            plot.line(&[(limit, y - 0.4), (limit, y + 0.4)], INK, 1);
        }
    }
    (!all.is_empty()).then(|| plot.svg())
}

/// The handler or operation, with the figure unless that is the average.
fn named(name: &str, statistic: Statistic) -> String {
    match statistic {
        Statistic::Avg => name.to_owned(),
        other => format!("{name} {other}"),
    }
}

/// Figures of the [`summary`].
const SHOWN: [Statistic; 4] = [Statistic::Avg, Statistic::Tp50, Statistic::Tp90, Statistic::Tp99];

/// One row for each handler; those that did not change are folded, unless none did.
fn summary(subjects: &[Subject<'_>]) -> Table {
    let mut head = ["handler", "verdict", "count"].map(str::to_owned).to_vec();
    for statistic in SHOWN {
        let sides = ["baseline", "candidate"].map(|side| format!("{statistic}, {side}"));
        head.extend(sides.into_iter().chain(["change".to_owned()]));
    }
    let (mut folded, mut rows): (Vec<_>, Vec<_>) =
        subjects.iter().partition(|subject| subject.is_unchanged());
    if rows.is_empty() {
        std::mem::swap(&mut folded, &mut rows);
    }
    Table {
        summary: format!("{} unchanged", folded.len()),
        rows: rows.into_iter().map(row).collect(),
        folded: folded.into_iter().map(row).collect(),
        note: NOTE.to_owned(),
        ..Table::figures(head, [])
    }
}

fn row(subject: &Subject<'_>) -> Row {
    let (first, mut changes) = (subject.lines[0], subject.changes());
    let calls = changes.next().map(|of| of.candidate_calls.total.to_string());
    let mut cells = vec![subject.name.clone(), gate::word(first).to_owned(), or_dash(calls)];
    for statistic in SHOWN {
        let change = subject.change(statistic);
        let sides = change.map_or([None; 2], |change| [change.base, change.candidate]);
        cells.extend(sides.map(|of| or_dash(of.map(|of| figure(of, first.meter)))));
        let percent = change.and_then(|change| change.percent);
        cells.push(or_dash(percent.map(|percent| format!("{percent:+.2} %"))));
    }
    Row::of(cells)
}

/// The runs of a handler on both sides.
fn section(subject: &Subject<'_>) -> Document {
    let first = subject.lines[0];
    let plots = [Statistic::Avg, Statistic::Tp99].into_iter().filter_map(|statistic| {
        let change = subject.change(statistic)?;
        let [base, candidate] = [&change.base_runs, &change.candidate_runs].map(|runs| {
            runs.iter().enumerate().filter_map(|(run, figure)| Some((run, (*figure)?))).collect()
        });
        let svg = plot::runs_of([("baseline", base), ("candidate", candidate)], first.meter);
        Figure::of(svg, format!("{statistic} in each run"))
    });
    Document {
        title: subject.name.clone(),
        lead: vec![format!("{}: {} {}", gate::word(first), first.figure(), first.evidence)],
        plots: plots.collect(),
        ..Document::default()
    }
}
