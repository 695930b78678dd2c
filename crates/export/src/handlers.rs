//! The tables of handlers: their figures, what they ran themselves, and the books: what became of every call.
//!
//! Several runs are never pooled: each figure is the median over them.

use std::collections::HashSet;

use indexmap::IndexMap;

use profiler_base::stats::mean;
use profiler_recording::measure::Losses;
use profiler_recording::{Backend, HandlerRecording, Recording};

use super::cell::{clean, full_name};
use super::document::{Table, or_dash};
use super::style::{Samples, Style};

/// What is below the books on a page.
const NOTE: &str = "carried in + entries = count + in flight + lost. Calls that the kernel missed were never seen by the probes.";

/// A handler over the runs that have it, under one load if runs are of several.
pub(super) struct Subject<'a> {
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

/// The handlers that have a row.
pub(super) fn subjects(runs: &[Recording]) -> Vec<Subject<'_>> {
    // By name, module and part as they are: two names may look alike where they are shown.
    let shown: HashSet<_> =
        runs.iter().flat_map(|run| run.shown().map(move |handler| key(run, handler))).collect();
    let mut subjects: IndexMap<_, Subject<'_>> = IndexMap::new();
    for (at, run) in runs.iter().enumerate() {
        for handler in run.handlers.iter().filter(|handler| shown.contains(&key(run, handler))) {
            let new = || Subject { name: name(runs, run, handler), runs: Vec::new() };
            subjects.entry(key(run, handler)).or_insert_with(new).runs.push((at, handler));
        }
    }
    subjects.into_values().collect()
}

fn key<'a>(
    run: &'a Recording,
    handler: &'a HandlerRecording,
) -> (&'a str, Option<&'a str>, Option<&'a str>) {
    (&handler.name, handler.module.as_deref(), run.part())
}

/// The handler's name, with its part where others have one of that name: one function may run under two loads.
fn name(runs: &[Recording], run: &Recording, handler: &HandlerRecording) -> String {
    let mut name = full_name(runs, handler);
    let mut others = runs.iter().filter(|other| other.part() != run.part());
    if let Some(part) = run.part()
        && others.any(|other| other.handlers.iter().any(|it| it.name == handler.name))
    {
        name.push_str(&format!(" ({part})"));
    }
    clean(&name).into_owned()
}

/// Calls, durations and losses; of several runs without rates.
pub(super) fn figures(runs: &[Recording], subjects: &[Subject<'_>], style: Style) -> Table {
    let calls = if style.several { ["runs", "count"] } else { ["count", "calls/s"] };
    let mut head = ["handler"].into_iter().chain(calls).map(str::to_owned).collect::<Vec<_>>();
    head.extend(style.heads().into_iter().chain(["lost".to_owned()]));
    let rows = subjects.iter().map(|subject| {
        let mut samples = Samples::default();
        for (_, of) in &subject.runs {
            let whole = (of.count, of.mean_ns(), of.max_ns);
            samples.add(style, whole, |share| of.quantile_ns(share));
        }
        let (mut cells, mut lost) = (vec![subject.name.clone()], String::new());
        cells.extend(samples.counts(style));
        match subject.runs.as_slice() {
            [(run, of)] if !style.several => {
                let seconds = runs[*run].window_ns as f64 / 1e9;
                cells.push(format!("{:.1}", of.count as f64 / seconds));
                lost = self::lost(of);
            }
            several => {
                let each = several.iter().map(|(_, of)| of.losses.unmeasured());
                lost += &each.fold(0, u64::saturating_add).to_string();
            }
        }
        cells.extend(samples.cells(style).into_iter().chain([lost]));
        cells
    });
    Table::figures(head, rows)
}

/// Lost calls, with their share of all calls.
fn lost(handler: &HandlerRecording) -> String {
    let lost = handler.losses.unmeasured();
    if lost == 0 {
        return "0".to_owned();
    }
    let share = handler.losses.share(handler.count) * 100.0;
    if share < 0.01 { format!("{lost} (<0.01%)") } else { format!("{lost} ({share:.2}%)") }
}

/// What handlers ran themselves, where instructions were counted: averages that add up. Instructions that repeat, and those that order
/// others, have a column each where there are some.
pub(super) fn own(subjects: &[Subject<'_>], style: Style) -> Table {
    type Extra = (&'static str, fn(&HandlerRecording) -> Option<u64>);
    let all =
        subjects.iter().flat_map(|subject| subject.runs.iter().map(move |(_, of)| (subject, of)));
    let extras: [Extra; 2] = [("repeated", |it| it.repeated), ("ordering", |it| it.ordering)];
    let mut extras = Vec::from(extras);
    extras.retain(|(_, of)| all.clone().any(|(_, handler)| of(handler) > Some(0)));
    let mut head = vec!["handler".to_owned()];
    head.extend(["average", "self average", "within"].map(|name| style.head(name)));
    head.extend(extras.iter().map(|(name, _)| (*name).to_owned()));
    let rows = all.filter_map(|(subject, handler)| {
        let own = handler.own_instructions?;
        let sums = [handler.sum_ns, own, handler.sum_ns.saturating_sub(own)];
        let mut cells = vec![subject.name.clone()];
        cells.extend(sums.map(|sum| style.average(mean(sum, handler.count))));
        cells.extend(extras.iter().map(|(_, of)| {
            let mean = of(handler).and_then(|sum| mean(sum, handler.count));
            or_dash(mean.map(|mean| format!("{mean:.1}")))
        }));
        Some(cells)
    });
    Table::figures(head, rows)
}

/// The books over all runs.
pub(super) fn books(runs: &[Recording], subjects: &[Subject<'_>]) -> Table {
    let sums = subjects.iter().map(|subject| {
        let mut sum = Losses::default();
        subject.runs.iter().for_each(|(_, of)| sum += of.losses);
        (subject, sum)
    });
    let sums: Vec<(&Subject<'_>, Losses)> = sums.collect();
    let mut rare = Vec::from(Losses::RARE);
    rare.retain(|(_, of)| sums.iter().any(|(_, losses)| of(losses) > 0));
    let mut head = vec!["handler", "backend", "carried in", "entries", "exits", "in flight"];
    head.extend(["lost", "unpaired", "missed", "overrun"]);
    head.extend(rare.iter().map(|(name, _)| *name));
    // The kernel counts overruns of all functions together, so the sum bounds each handler's.
    let is_bound = runs.iter().any(|run| {
        let backends = run.handlers.iter().map(|of| of.backend);
        backends.filter(|it| *it == Some(Backend::FunctionGraph)).count() > 1
    });
    let rows = sums.iter().map(|(Subject { name, runs }, losses)| {
        let way = runs.first().map_or(String::new(), |(_, of)| of.way());
        // Some backends do not learn of every skipped program.
        let unknown = if losses.missed_unknown { "+?" } else { "" };
        let most = if is_bound && losses.overrun > 0 { "<=" } else { "" };
        let Losses { carried_in, entries, exits, in_flight, lost, unpaired_exits, .. } = losses;
        let usual = [carried_in, entries, exits, in_flight, lost, unpaired_exits];
        let mut cells = vec![name.clone(), way];
        cells.extend(usual.map(u64::to_string));
        cells.push(format!("{}{unknown}", losses.missed));
        cells.push(format!("{most}{}", losses.overrun));
        cells.extend(rare.iter().map(|(_, of)| of(losses).to_string()));
        cells
    });
    Table { note: NOTE.to_owned(), ..Table::figures(head, rows) }
}

#[cfg(test)]
mod tests {
    use profiler_recording::{Clock, HistogramLayout, Meter};

    use super::*;

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

    #[test]
    fn one_name_in_two_modules_is_two_handlers() {
        let layout = HistogramLayout::of_digits(3);
        let runs = ["one", "two"].map(|module| Recording {
            handlers: vec![HandlerRecording {
                name: "open".to_owned(),
                module: Some(module.to_owned()),
                ..HandlerRecording::default()
            }],
            ..Recording::new(jiff::Timestamp::UNIX_EPOCH, Clock::Wall, Meter::Probes, layout)
        });
        let names: Vec<String> = subjects(&runs).into_iter().map(|of| of.name).collect();
        assert_eq!(names, ["open [one]", "open [two]"]);
    }
}
