//! The view of several runs: each figure is the median over the runs, which are never pooled, with the spread beside it.

use std::collections::HashMap;

use super::cell::clean;
use super::document::{Document, Note, Table, or_dash};
use super::style::{Style, subject_of};
use super::{books, facts, loads, unseen};
use crate::recording::measure::Losses;
use crate::recording::{HandlerRecording, Meter, Recording};
use crate::stats::{median, spread};
use crate::text::plural;

/// The view.
pub(super) fn document(runs: &[Recording], style: Style) -> Document {
    let subjects = subjects(runs);
    let books = if style.wide { books(&subjects) } else { Table::default() };
    let meter = runs.first().map_or(Meter::Probes, |run| run.meter);
    Document {
        title: subject_of(meter)[0].to_owned(),
        facts: facts::of_runs(runs, style.unit),
        tables: vec![handlers(&subjects, style), operations(runs, style)],
        sections: Document::of_table("Books", books).into_iter().collect(),
        notes: unseen::notes_of_runs(runs).into_iter().chain(warnings(runs)).collect(),
        ..Document::default()
    }
}

/// The figures of a row in each run.
#[derive(Default)]
struct Samples {
    counts: Vec<u64>,
    means: Vec<f64>,
    /// Of each percentile.
    quantiles: Vec<Vec<f64>>,
    max: Option<u64>,
}

impl Samples {
    fn add(
        &mut self,
        style: Style,
        (count, mean, max): (u64, Option<f64>, Option<u64>),
        quantile: impl Fn(f64) -> Option<u64>,
    ) {
        self.counts.push(count);
        self.means.extend(mean);
        self.max = self.max.max(max);
        self.quantiles.resize(style.quantiles().len(), Vec::new());
        for (values, (_, share)) in self.quantiles.iter_mut().zip(style.quantiles()) {
            values.extend(quantile(*share).map(|value| value as f64));
        }
    }

    fn cells(&self, style: Style) -> Vec<String> {
        let counts = match (self.counts.iter().min(), self.counts.iter().max()) {
            (Some(fewest), Some(most)) if fewest != most => format!("{fewest}..{most}"),
            (_, most) => or_dash(most.map(u64::to_string)),
        };
        let mut cells = vec![self.counts.len().to_string(), counts];
        cells.extend([style.average(median(&self.means)), apart(&self.means)]);
        for ((name, _), values) in style.quantiles().iter().zip(&self.quantiles) {
            // The median of two runs may lie between two whole nanoseconds.
            cells.push(style.exact(median(values).map(|value| value.round().max(0.0) as u64)));
            cells.extend((*name == "TP99").then(|| apart(values)));
        }
        cells.push(style.exact(self.max));
        cells
    }
}

/// Heads of a table of runs.
fn head(style: Style, name: &str, last: &str) -> Vec<String> {
    let mut head = [name, "runs", "count"].map(str::to_owned).to_vec();
    for name in style.heads() {
        let has_spread = name.starts_with("average") || name == style.head("TP99");
        head.push(name);
        head.extend(has_spread.then(|| "spread".to_owned()));
    }
    head.push(last.to_owned());
    head
}

fn apart(values: &[f64]) -> String {
    or_dash(spread(values).map(|share| format!("{:.2}%", share * 100.0)))
}

fn handlers(subjects: &[Subject<'_>], style: Style) -> Table {
    let row = |subject: &Subject<'_>| {
        let (mut samples, mut lost) = (Samples::default(), 0_u64);
        for (_, of) in &subject.runs {
            samples.add(style, (of.count, of.mean_ns(), of.max_ns), |share| of.quantile_ns(share));
            lost = lost.saturating_add(of.losses.unmeasured());
        }
        [vec![subject.name.clone()], samples.cells(style), vec![lost.to_string()]].concat()
    };
    Table::figures(head(style, "handler", "lost"), subjects.iter().map(row))
}

fn operations(runs: &[Recording], style: Style) -> Table {
    let mut rows: Vec<(String, Samples, Vec<f64>)> = Vec::new();
    for (name, times, cpu) in runs.iter().flat_map(|run| &run.loads).flat_map(loads::of_load) {
        let at = rows.iter().position(|(other, ..)| *other == name).unwrap_or(rows.len());
        if at == rows.len() {
            rows.push((name, Samples::default(), Vec::new()));
        }
        let (_, samples, costs) = &mut rows[at];
        let whole = (times.count, times.mean_ns(), times.max_ns);
        samples.add(style, whole, |share| times.quantile_ns(share));
        costs.extend(cpu);
    }
    let row = |(name, samples, costs): (String, Samples, Vec<f64>)| {
        let cpu = median(&costs).map_or_else(String::new, |ns| format!("{:.2}", ns / 1e3));
        [vec![name], samples.cells(style), vec![cpu]].concat()
    };
    Table::figures(head(style, "operation", "CPU us/op"), rows.into_iter().map(row))
}

/// The books over all runs, of handlers whose sums fit.
fn books(subjects: &[Subject<'_>]) -> Table {
    let sum = |subject: &Subject<'_>| {
        let each = subject.runs.iter();
        let sum =
            each.clone().try_fold(Losses::default(), |sum, (_, of)| sum.checked_add(&of.losses))?;
        Some((subject.name.clone(), each.map(|(_, of)| of.way()).next()?, sum))
    };
    let sums: Vec<(String, String, Losses)> = subjects.iter().filter_map(sum).collect();
    let further = Losses::rare_names(sums.iter().map(|(.., losses)| losses));
    let head = ["handler", "backend"].into_iter().chain(books::heads(&further));
    let rows = sums.iter().map(|(name, way, losses)| {
        [vec![name.clone(), way.clone()], books::counts(losses, &further, false)].concat()
    });
    Table::figures(head, rows)
}

/// A handler over the runs that have it.
pub(super) struct Subject<'a> {
    /// With its module or its part where others have one of that name.
    pub(super) name: String,
    /// The numbers of the runs, from 0, and the handler in each.
    pub(super) runs: Vec<(usize, &'a HandlerRecording)>,
}

impl<'a> Subject<'a> {
    /// The runs with a call.
    pub(super) fn called(&self) -> Vec<(usize, &'a HandlerRecording)> {
        self.runs.iter().filter(|(_, handler)| handler.count > 0).copied().collect()
    }
}

/// The handlers that a run has a row for.
pub(super) fn subjects(runs: &[Recording]) -> Vec<Subject<'_>> {
    let numbered = runs.iter().enumerate();
    let all =
        || numbered.clone().flat_map(|(at, run)| run.handlers.iter().map(move |of| (at, run, of)));
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    // By name, module and part as they are: two names may look alike where they are shown.
    let mut numbers: HashMap<_, usize> = HashMap::new();
    for (at, run, handler) in all().filter(|(.., handler)| unseen::is_shown(handler, runs)) {
        let key = (&handler.name, &handler.module, run.part());
        if let Some(number) = numbers.get(&key) {
            subjects[*number].runs.push((at, handler));
            continue;
        }
        numbers.insert(key, subjects.len());
        // Two modules may have functions of one name, and one function may run under two loads.
        let same = || all().filter(|(.., other)| other.name == handler.name);
        let mut name = handler.name.clone();
        if let Some(module) = &handler.module
            && same().any(|(.., other)| other.module != handler.module)
        {
            name.push_str(&format!(" [{module}]"));
        }
        if let Some(of_run) = run.part()
            && same().any(|(_, other, _)| other.part() != Some(of_run))
        {
            name.push_str(&format!(" ({of_run})"));
        }
        subjects.push(Subject { name: clean(&name).into_owned(), runs: vec![(at, handler)] });
    }
    subjects
}

/// Each warning once, with the runs that have it.
fn warnings(runs: &[Recording]) -> Vec<Note> {
    let mut found: Vec<(&str, Vec<String>)> = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        for warning in &run.warnings {
            let number = (at + 1).to_string();
            match found.iter_mut().find(|(text, _)| *text == warning.text) {
                Some((_, of)) => of.push(number),
                None => found.push((&warning.text, vec![number])),
            }
        }
    }
    let note = |(text, of): (&str, Vec<String>)| match of.len() {
        all if all == runs.len() => Note::new("warning", text),
        several => {
            Note::new("warning", format!("run{} {}: {text}", plural(several), of.join(", ")))
        }
    };
    found.into_iter().map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{Clock, HistogramLayout};

    #[test]
    fn names_that_look_alike_are_two_handlers() {
        let layout = HistogramLayout::of_digits(3);
        let mut run =
            Recording::new(jiff::Timestamp::UNIX_EPOCH, Clock::Wall, Meter::Probes, layout);
        run.handlers = ["a\u{1}", "a\u{2}"]
            .map(|name| HandlerRecording { name: name.to_owned(), ..HandlerRecording::default() })
            .into();
        let runs = [run.clone(), run];
        let numbers: Vec<usize> = subjects(&runs).iter().map(|of| of.runs.len()).collect();
        assert_eq!(numbers, [2, 2]);
    }
}
