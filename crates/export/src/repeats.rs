//! The tables of several runs: each figure is the median over the runs, which are never pooled, with the spread beside it.

use std::collections::HashMap;

use super::cell::clean;
use super::document::{Note, Table};
use super::style::{Samples, Style};
use super::{books, unseen};
use profiler_base::text::plural;
use profiler_recording::measure::Losses;
use profiler_recording::{HandlerRecording, Recording};

/// A row for each handler.
pub(super) fn handlers(runs: &[Recording], style: Style) -> Table {
    let mut head = ["handler", "runs", "count"].map(str::to_owned).to_vec();
    head.extend(style.heads().into_iter().chain(["lost".to_owned()]));
    let subjects = subjects(runs);
    let rows = subjects.iter().map(|subject| {
        let (mut samples, mut lost) = (Samples::default(), 0_u64);
        for (_, of) in &subject.runs {
            samples.add_handler(style, of);
            lost = lost.saturating_add(of.losses.unmeasured());
        }
        let name = vec![subject.name.clone()];
        [name, samples.counts(style), samples.cells(style), vec![lost.to_string()]].concat()
    });
    Table::figures(head, rows)
}

/// The books over all runs.
pub(super) fn books(runs: &[Recording]) -> Table {
    let sums = subjects(runs).into_iter().filter_map(|Subject { name, runs }| {
        let way = runs.first()?.1.way();
        let mut sum = Losses::default();
        runs.iter().for_each(|(_, of)| sum += of.losses);
        Some((name, way, sum))
    });
    let sums: Vec<(String, String, Losses)> = sums.collect();
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
    let all = numbered.flat_map(|(at, run)| run.handlers.iter().map(move |of| (at, run, of)));
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    // By name, module and part as they are: two names may look alike where they are shown.
    let mut numbers: HashMap<_, usize> = HashMap::new();
    for (at, run, handler) in all.clone().filter(|(.., handler)| unseen::is_shown(handler, runs)) {
        let key = (&handler.name, &handler.module, run.part());
        if let Some(number) = numbers.get(&key) {
            subjects[*number].runs.push((at, handler));
            continue;
        }
        numbers.insert(key, subjects.len());
        // Two modules may have functions of one name, and one function may run under two loads.
        let mut same = all.clone().filter(|(.., other)| other.name == handler.name);
        let mut name = handler.name.clone();
        if let Some(module) = &handler.module
            && same.clone().any(|(.., other)| other.module != handler.module)
        {
            name.push_str(&format!(" [{module}]"));
        }
        if let Some(of_run) = run.part()
            && same.any(|(_, other, _)| other.part() != Some(of_run))
        {
            name.push_str(&format!(" ({of_run})"));
        }
        subjects.push(Subject { name: clean(&name).into_owned(), runs: vec![(at, handler)] });
    }
    subjects
}

/// What no run has called, and each warning once, with the runs that have it.
pub(super) fn notes(runs: &[Recording]) -> Vec<Note> {
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
    let warnings = found.into_iter().map(|(text, of)| match of.len() {
        all if all == runs.len() => Note::new("warning", text),
        several => {
            Note::new("warning", format!("run{} {}: {text}", plural(several), of.join(", ")))
        }
    });
    unseen::notes(runs).into_iter().chain(warnings).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_recording::{Clock, HistogramLayout, Meter};

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
