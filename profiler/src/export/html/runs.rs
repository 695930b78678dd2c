//! The page of several runs of one thing: medians over the runs, which are never pooled, and each figure by run.

use super::facts::{self, Fact};
use super::overview::{self, Figures};
use super::rows::{self, Account, Cell, Grid, QUANTILES};
use super::{Figure, HandlerSection, Marked, Page, Side, plot, subject_of, title, tree};
use crate::export::cell::{Unit, clean};
use crate::export::repeats::{self, OF_EACH_RUN, Subject};
use crate::recording::measure::Losses;
use crate::recording::{HandlerRecording, Meter, Recording};
use crate::stats::{median, spread};

/// Runs that have a line of their own among the facts.
const NAMED: usize = 100;

const NOTE: &str = "Each figure is the median over the runs that have the handler; calls are of all of them, max is the largest \
                    call, and spread is the largest less the smallest over the median.";

/// The page of `runs`.
pub(super) fn page(runs: &[Recording]) -> Page {
    let subjects: Vec<Subject<'_>> = repeats::handler_rows(runs);
    let meter = runs.first().map_or(Meter::Probes, |run| run.meter);
    let trees = tree::Trees::of_runs(runs);
    let marked = |text: String| Marked { mark: "", text };
    let shown = |subject: &Subject<'_>| clean(&subject.name).into_owned();
    let figures = subjects.iter().filter_map(|subject| {
        let called: Vec<&HandlerRecording> = called(subject).map(|(_, handler)| handler).collect();
        Some((shown(subject), vec![Figures::of(0, &called)?]))
    });
    let section = |(number, subject): (usize, &Subject<'_>)| HandlerSection {
        trees: trees.iter().filter_map(|trees| trees.find(&name(subject)?)).collect(),
        ..section(runs, subject, number, meter)
    };
    let [heading, summary_heading, _] = subject_of(meter);
    Page {
        title: title(subjects.iter().map(shown), meter),
        heading,
        summary_heading,
        unchanged: None,
        decision: None,
        labels: vec![marked(String::new())],
        warnings: repeats::warnings(runs)
            .iter()
            .map(|text| marked(clean(text).into_owned()))
            .collect(),
        overview: overview::drawn(&Vec::from_iter(figures), meter, "; medians over the runs"),
        summary: summary(runs, &subjects),
        summary_note: NOTE,
        figures: None,
        handlers: subjects.iter().enumerate().map(section).collect(),
        tree_notes: trees.iter().flat_map(|trees| trees.notes.clone()).collect(),
        books: Some(books(&subjects)),
        costs: None,
        facts: facts_of(runs),
    }
}

/// The runs with a call.
fn called<'s, 'a>(
    subject: &'s Subject<'a>,
) -> impl Iterator<Item = (usize, &'a HandlerRecording)> + use<'s, 'a> {
    subject.of.iter().filter(|(_, handler)| handler.count > 0).copied()
}

fn name(subject: &Subject<'_>) -> Option<rows::Name> {
    let (_, handler) = subject.of.first()?;
    Some(rows::Name {
        name: handler.name.clone(),
        module: handler.module.clone(),
        shown: subject.name.clone(),
    })
}

/// The section of a handler: that of its only run with a call, or its figures by run.
fn section(
    runs: &[Recording],
    subject: &Subject<'_>,
    number: usize,
    meter: Meter,
) -> HandlerSection {
    let with_calls: Vec<_> = called(subject).collect();
    let side = |run: &usize| Some(Side { mark: "", number: 0, recording: runs.get(*run)? });
    if let [] | [_] = with_calls.as_slice() {
        let only = with_calls.first().or(subject.of.first());
        let only: Vec<Side<'_>> = only.iter().filter_map(|(run, _)| side(run)).collect();
        let name = name(subject).unwrap_or_default();
        let mut section = super::section(&only, &[], number, &name);
        if let [(run, _)] = with_calls.as_slice() {
            let called = format!("Called in run {} alone.", run + 1);
            section.note = Some(section.note.map_or(called.clone(), |note| called + " " + &note));
        }
        return section;
    }
    let shown = clean(&subject.name).into_owned();
    let sides = with_calls.iter().filter_map(|(run, handler)| Some((side(run)?, *handler)));
    let by_run = plot::by_run(&with_calls, meter);
    let overlaid = plot::percentiles(&Vec::from_iter(sides));
    let [_, _, what] = subject_of(meter);
    let drawn = [
        Figure::of(by_run, format!("figures of {shown} by run"), "Figures by run"),
        Figure::of(
            overlaid,
            format!("{what} by percentile in each run, of {shown}"),
            format!("{what} by percentile, a curve for each run"),
        ),
    ];
    HandlerSection {
        name: shown,
        anchor: format!("handler-{number}"),
        note: None,
        plots: drawn.into_iter().flatten().collect(),
        trees: Vec::new(),
    }
}

/// Medians and spreads, one row for each handler.
fn summary(runs: &[Recording], subjects: &[Subject<'_>]) -> Grid {
    let unit = Unit::Auto.for_handlers(runs);
    let in_unit = |name: &str| format!("{name} [{unit}]");
    let mut headers: Vec<String> =
        ["handler", "backend", "runs", "calls"].map(str::to_owned).into();
    headers.extend([in_unit("average"), "spread".to_owned()]);
    headers.extend(QUANTILES.iter().map(|(name, _)| in_unit(name)));
    headers.extend(["TP99, spread".to_owned(), in_unit("max"), "lost".to_owned()]);
    let row = |subject: &Subject<'_>| {
        let each = || subject.of.iter().map(|(_, handler)| *handler);
        let means: Vec<f64> = each().filter_map(HandlerRecording::mean_ns).collect();
        let at = |quantile: f64| -> Vec<f64> {
            each().filter_map(|of| of.quantile_ns(quantile)).map(|value| value as f64).collect()
        };
        let exact = |value: f64| Cell::figure(unit.exact(value.round().max(0.0) as u64), value);
        let apart = |values: &[f64]| {
            let figure = |share: f64| Cell::figure(format!("{:.2} %", share * 100.0), share);
            spread(values).map_or_else(Cell::none, figure)
        };
        let ways = each().next().map_or_else(String::new, |handler| handler.way().to_string());
        let mut row = vec![Cell::text(clean(&subject.name)), Cell::text(ways)];
        row.push(Cell::count(subject.of.len() as u64));
        row.push(Cell::count(each().map(|handler| handler.count).fold(0, u64::saturating_add)));
        let average = median(&means);
        row.push(average.map_or_else(Cell::none, |mean| Cell::figure(unit.average(mean), mean)));
        row.push(apart(&means));
        let quantiles = QUANTILES.iter().map(|(_, quantile)| median(&at(*quantile)));
        row.extend(quantiles.map(|value| value.map_or_else(Cell::none, exact)));
        row.push(apart(&at(0.99)));
        let max = each().filter_map(|handler| handler.max_ns).max();
        row.push(max.map_or_else(Cell::none, |max| exact(max as f64)));
        let lost = each().map(|handler| handler.losses.unmeasured());
        row.push(Cell::count(lost.fold(0, u64::saturating_add)));
        row
    };
    Grid::new(headers, subjects.iter().map(row).collect())
}

/// The books over all runs, of handlers whose sums there are.
fn books(subjects: &[Subject<'_>]) -> Grid {
    let account = |subject: &Subject<'_>| {
        let add = |sum: Losses, (_, handler): &(usize, &HandlerRecording)| {
            sum.checked_add(&handler.losses)
        };
        Some(Account {
            of: vec![Cell::text(clean(&subject.name))],
            measured: subject.of.iter().try_fold(0, |sum: u64, of| sum.checked_add(of.1.count))?,
            losses: subject.of.iter().try_fold(Losses::default(), add)?,
        })
    };
    rows::books_of(&["handler"], subjects.iter().filter_map(account).collect())
}

/// What the runs have in common, and a line for each.
fn facts_of(runs: &[Recording]) -> Vec<Fact> {
    let Some(first) = runs.first() else { return Vec::new() };
    let mut all = facts::of(&[Side { mark: "", number: 0, recording: first }]);
    all.retain(|fact| !OF_EACH_RUN.contains(&fact.label()));
    let numbered = runs.iter().take(NAMED).enumerate();
    all.extend(
        numbered
            .map(|(number, run)| Fact::one(format!("run {}", number + 1), &repeats::describe(run))),
    );
    if runs.len() > NAMED {
        all.push(Fact::one("runs", &format!("{} more", runs.len() - NAMED)));
    }
    all
}
