//! The page of a gate: the decision and its reasons, what changed by how much, and the runs of the handlers that are not simply
//! passed.

use super::changes::{self, Change};
use super::plot;
use crate::cell::clean;
use crate::document::{Document, Figure, Row, Table, or_dash};
use crate::gate;
use crate::verdict::GateReport;
use profiler_recording::Meter;
use profiler_verdict::{ChangeRecord, Line, Statistic, Verdict, figure, signed};

/// Percent below which a figure that passed did not change.
const LEAST: f64 = 0.05;

/// Handlers whose runs are drawn.
const DRAWN: usize = 50;

const NOTE: &str = "Figures are those that the gate compares, over the runs of a side; calls are the candidate's, in all runs; the verdict is the \
                    gravest of the handler's figures.";

/// All lines of the report on one handler, at least one, in the order of their weight.
struct Subject<'a> {
    name: String,
    lines: Vec<&'a Line>,
}

impl Subject<'_> {
    fn changes(&self) -> impl Iterator<Item = &ChangeRecord> {
        self.lines.iter().filter_map(|line| line.change.as_ref())
    }

    fn change(&self, statistic: Statistic) -> Option<&ChangeRecord> {
        self.changes().find(|change| change.statistic == statistic)
    }

    /// The line that is drawn: the average, unless another figure decides.
    fn shown(&self) -> Option<&Line> {
        let lines = self.lines.iter().copied();
        let of_changes = lines.filter(|line| line.change.is_some() && line.budget.is_none());
        of_changes.min_by_key(|line| line.rank())
    }

    fn percent(&self) -> f64 {
        self.shown().and_then(|line| line.change.as_ref()?.percent).unwrap_or(0.0)
    }

    /// Whether no figure differs.
    fn is_unchanged(&self) -> bool {
        let mut percents = self.changes().map(|of| of.percent);
        self.is_passed() && percents.all(|of| of.is_some_and(|percent| percent.abs() < LEAST))
    }

    fn meter(&self) -> Meter {
        self.lines[0].meter
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
    subjects.sort_by(|a, b| {
        a.rank().cmp(&b.rank()).then_with(|| b.percent().abs().total_cmp(&a.percent().abs()))
    });
    subjects
}

/// The report as a page.
pub fn page(report: &GateReport) -> Vec<u8> {
    let subjects = subjects(report);
    let changed = subjects.iter().filter(|subject| !subject.is_unchanged());
    let undecided = subjects.iter().filter(|subject| !subject.is_passed());
    let mut document = gate::document(report);
    document.plots.extend(changes::drawn(&Vec::from_iter(changed.filter_map(drawing))));
    document.tables = vec![summary(&subjects), gate::figures(report, true)];
    document.sections = undecided.take(DRAWN).map(section).collect();
    document.page()
}

/// By how much a handler or operation changed.
fn drawing(subject: &Subject<'_>) -> Option<Change> {
    let line = subject.shown()?;
    let change = line.change.as_ref()?;
    let (base, candidate) = (change.base?, change.candidate?);
    let statistic = match change.statistic {
        Statistic::Avg => String::new(),
        other => format!(" {other}"),
    };
    let by = change.change.unwrap_or(candidate - base);
    Some(Change {
        name: format!("{}{statistic}", subject.name),
        percent: change.percent?,
        ends: change.percent_bounds,
        limit: line.limit_percent,
        words: format!("{}, {:+.2} %", signed(by, change.meter()), change.percent?),
        colour: match line.verdict {
            Verdict::Fail => 1,
            _ if line.improved => 2,
            _ => 0,
        },
    })
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
    let calls = subject.changes().next().map(|of| of.candidate_calls.total.to_string());
    let verdict = gate::word(subject.lines[0]).to_owned();
    let mut cells = vec![subject.name.clone(), verdict, or_dash(calls)];
    for statistic in SHOWN {
        let change = subject.change(statistic);
        let sides = change.map_or([None; 2], |change| [change.base, change.candidate]);
        cells.extend(sides.map(|of| or_dash(of.map(|of| figure(of, subject.meter())))));
        let percent = change.and_then(|change| change.percent);
        cells.push(or_dash(percent.map(|percent| format!("{percent:+.2} %"))));
    }
    Row::of(cells)
}

/// The runs of a handler on both sides.
fn section(subject: &Subject<'_>) -> Document {
    let plots = [Statistic::Avg, Statistic::Tp99].into_iter().filter_map(|statistic| {
        let change = subject.change(statistic)?;
        let [base, candidate] = [&change.base_runs, &change.candidate_runs].map(|runs| {
            runs.iter().enumerate().filter_map(|(run, figure)| Some((run, (*figure)?))).collect()
        });
        let svg = plot::runs_of([("baseline", base), ("candidate", candidate)], subject.meter());
        let label = format!("{statistic} of {} in each run", subject.name);
        Figure::of(svg, label, format!("{statistic} in each run"))
    });
    let first = subject.lines[0];
    Document {
        title: subject.name.clone(),
        lead: vec![format!("{}: {} {}", gate::word(first), first.figure(), first.evidence)],
        plots: plots.collect(),
        ..Document::default()
    }
}
