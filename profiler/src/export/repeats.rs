//! The table of a series: each figure is the median over the runs, which are never pooled, with the
//! spread beside it.

use comfy_table::Row;

use super::cell::{Unit, clean};
use super::table::{describe_outcome, heading, paragraph, seconds};
use super::{grid, unseen};
use crate::load::{LoadRun, LoadSpec, OperationTimes};
use crate::recording::{HandlerRecording, Recording};
use crate::stats::{median, spread};
use crate::text::plural;

/// Runs that have a line of their own above the table.
const NAMED: usize = 20;

/// Labels of the heading that differ from run to run.
pub(super) const OF_EACH_RUN: [&str; 4] = ["window", "sum of", "load", "histograms"];

/// The table of `runs`; `width` is the terminal's.
#[must_use]
pub fn table(runs: &[Recording], unit: Unit, width: Option<u16>) -> Vec<u8> {
    let Some(first) = runs.first() else { return Vec::new() };
    let unit = match first.handlers.is_empty() {
        true => unit.resolve(first),
        false => unit.for_handlers(runs),
    };
    let mut text = head(first, runs, unit);
    let tables = [
        grid_of("handler", handler_rows(runs), unit, width),
        grid_of("operation", operation_rows(runs), unit, width),
    ];
    for table in tables.into_iter().flatten() {
        text.push('\n');
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text.push_str(&paragraph(unseen::lines_of_runs(runs)));
    let warnings = warnings(runs);
    text.push_str(&paragraph(warnings.iter().map(|warning| format!("warning: {warning}"))));
    text.into_bytes()
}

/// What the runs have in common, and a line for each.
fn head(first: &Recording, runs: &[Recording], unit: Unit) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: &str| {
        text.push_str(format!("{label:<10} {}", clean(value)).trim_end());
        text.push('\n');
    };
    for (label, value) in heading(first, unit) {
        if OF_EACH_RUN.contains(&label) {
            continue;
        }
        if label == "unit" {
            for (number, run) in runs.iter().take(NAMED).enumerate() {
                line(&format!("run {}", number + 1), &describe(run));
            }
            if runs.len() > NAMED {
                line("runs", &format!("{} more", runs.len() - NAMED));
            }
            let unit = value.split(';').next().unwrap_or_default();
            line(
                "unit",
                &format!(
                    "{unit}; medians over the runs, max is the largest; spread is the largest less the \
                     smallest over the median"
                ),
            );
        } else {
            line(label, &value);
        }
    }
    text
}

pub(super) fn describe(run: &Recording) -> String {
    let mut text = seconds(run.window_ns);
    if run.warmup_ns > 0 {
        text.push_str(&format!(", after {} of warm-up", seconds(run.warmup_ns)));
    }
    if let Some(place) = &run.place {
        text.push_str(&format!(", boot {}, order {}", place.boot, place.order));
        if let Some(part) = &place.part {
            text.push_str(&format!(", {part}"));
        }
    }
    if run.interrupted {
        text.push_str(", interrupted");
    }
    let loads = run.loads.iter().map(|load| format!("{}{}", load.spec, describe_outcome(load)));
    format!("{text}; {}", loads.collect::<Vec<_>>().join("; "))
}

/// A handler or an operation over the runs that have it.
#[derive(Default)]
pub(super) struct Subject<'a> {
    pub(super) name: String,
    counts: Vec<u64>,
    means: Vec<f64>,
    /// TP90, TP95 and TP99.
    quantiles: [Vec<f64>; 3],
    max_ns: Option<u64>,
    /// The last column, over all runs.
    last: Last,
    /// The numbers of the runs, from 0, and the handler in each; none of an operation.
    pub(super) of: Vec<(usize, &'a HandlerRecording)>,
}

/// The last column.
enum Last {
    /// Calls that were not measured, in all runs.
    Lost(u64),
    /// CPU time of an operation in each run, in nanoseconds.
    Cpu(Vec<f64>),
}

impl Default for Last {
    fn default() -> Self {
        Self::Lost(0)
    }
}

const QUANTILES: [f64; 3] = [0.90, 0.95, 0.99];

impl Subject<'_> {
    fn add(
        &mut self,
        count: u64,
        mean: Option<f64>,
        quantile: impl Fn(f64) -> Option<u64>,
        max: Option<u64>,
    ) {
        self.counts.push(count);
        self.means.extend(mean);
        for (values, at) in self.quantiles.iter_mut().zip(QUANTILES) {
            values.extend(quantile(at).map(|ns| ns as f64));
        }
        self.max_ns = self.max_ns.max(max);
    }

    fn cells(&self, unit: Unit) -> Vec<String> {
        let dash = || "-".to_owned();
        let (fewest, most) = (self.counts.iter().min(), self.counts.iter().max());
        let counts = match (fewest, most) {
            (Some(fewest), Some(most)) if fewest == most => most.to_string(),
            (Some(fewest), Some(most)) => format!("{fewest}..{most}"),
            _ => dash(),
        };
        // The median of two runs may lie between two whole nanoseconds.
        let quantile = |values: &Vec<f64>| {
            median(values).map_or_else(dash, |ns| unit.exact(ns.round().max(0.0) as u64))
        };
        let apart = |values: &[f64]| {
            spread(values).map_or_else(dash, |share| format!("{:.2}%", share * 100.0))
        };
        let [tp90, tp95, tp99] = &self.quantiles;
        vec![
            clean(&self.name).into_owned(),
            self.counts.len().to_string(),
            counts,
            median(&self.means).map_or_else(dash, |ns| unit.average(ns)),
            apart(&self.means),
            quantile(tp90),
            quantile(tp95),
            quantile(tp99),
            apart(tp99),
            self.max_ns.map_or_else(dash, |ns| unit.exact(ns)),
            match &self.last {
                Last::Lost(lost) => lost.to_string(),
                Last::Cpu(each) => {
                    median(each).map_or_else(String::new, |ns| format!("{:.2}", ns / 1e3))
                }
            },
        ]
    }
}

/// `None` if there is no row.
fn grid_of(name: &str, rows: Vec<Subject<'_>>, unit: Unit, width: Option<u16>) -> Option<String> {
    let last = match &rows.first()?.last {
        Last::Lost(_) => "lost",
        Last::Cpu(_) => "CPU us/op",
    };
    let header =
        [name, "runs", "count", "average", "spread", "TP90", "TP95", "TP99", "spread", "max", last];
    let rows = rows.into_iter().map(|subject| Row::from(subject.cells(unit)));
    Some(grid::figures(&header, rows, width))
}

/// The row of that name, added if it is missing.
fn named<'s, 'a>(
    rows: &'s mut Vec<Subject<'a>>,
    name: String,
    last: Last,
) -> Option<&'s mut Subject<'a>> {
    let at = rows.iter().position(|subject| subject.name == name).unwrap_or_else(|| {
        rows.push(Subject { name, last, ..Subject::default() });
        rows.len() - 1
    });
    rows.get_mut(at)
}

fn part(run: &Recording) -> Option<&str> {
    run.place.as_ref().and_then(|place| place.part.as_deref())
}

/// The handlers that a run has a row for.
pub(super) fn handler_rows(runs: &[Recording]) -> Vec<Subject<'_>> {
    // Two modules may have functions of one name, and one function may run under two loads.
    let all = || runs.iter().flat_map(|run| run.handlers.iter().map(move |handler| (run, handler)));
    let numbered = runs.iter().enumerate();
    let numbered = numbered.flat_map(|(at, run)| run.handlers.iter().map(move |of| (at, run, of)));
    let ambiguous = |run: &Recording, handler: &HandlerRecording| {
        let same = all().filter(|(_, other)| other.name == handler.name);
        let differs = |(in_run, other): (&Recording, &HandlerRecording)| {
            (other.module != handler.module, part(in_run) != part(run))
        };
        same.map(differs).fold((false, false), |(a, b), (c, d)| (a || c, b || d))
    };
    let mut rows = Vec::new();
    for (at, run, handler) in numbered.filter(|(_, _, handler)| unseen::is_shown(handler, runs)) {
        let (module, load) = ambiguous(run, handler);
        let mut name = handler.name.clone();
        if let (true, Some(module)) = (module, &handler.module) {
            name.push_str(&format!(" [{module}]"));
        }
        if let (true, Some(part)) = (load, part(run)) {
            name.push_str(&format!(" ({part})"));
        }
        let Some(subject) = named(&mut rows, name, Last::Lost(0)) else { continue };
        let quantile = |at| handler.quantile_ns(at);
        subject.add(handler.count, handler.mean_ns(), quantile, handler.max_ns);
        subject.of.push((at, handler));
        if let Last::Lost(lost) = &mut subject.last {
            *lost = lost.saturating_add(handler.losses.unmeasured());
        }
    }
    rows
}

fn operation_rows(runs: &[Recording]) -> Vec<Subject<'_>> {
    let mut rows = Vec::new();
    for load in runs.iter().flat_map(|run| &run.loads) {
        let LoadRun { spec: LoadSpec::Builtin { name, .. }, outcome } = load else { continue };
        let Some(latency) = &outcome.latency else { continue };
        let mut add = |name: String, times: &OperationTimes, cpu: Option<f64>| {
            let Some(subject) = named(&mut rows, name, Last::Cpu(Vec::new())) else { return };
            subject.add(times.count, times.mean_ns(), |at| times.quantile_ns(at), times.max_ns);
            if let Last::Cpu(each) = &mut subject.last {
                each.extend(cpu);
            }
        };
        let cpu = outcome.cpu_ns_per_operation();
        add(format!("{name}: service time"), &latency.service, cpu);
        if let Some(response) = &latency.response {
            // The row above has the CPU time.
            add(format!("{name}: response time"), response, None);
        }
    }
    rows
}

/// Each warning once, with the runs that have it.
pub(super) fn warnings(runs: &[Recording]) -> Vec<String> {
    let mut found: Vec<(&str, Vec<usize>)> = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        for warning in &run.warnings {
            match found.iter_mut().find(|(text, _)| *text == warning.text) {
                Some((_, of)) => of.push(number + 1),
                None => found.push((&warning.text, vec![number + 1])),
            }
        }
    }
    let line = |(warning, of): (&str, Vec<usize>)| {
        let numbers: Vec<String> = of.iter().map(usize::to_string).collect();
        let whose = match of.len() {
            all if all == runs.len() => String::new(),
            several => format!("run{} {}: ", plural(several), numbers.join(", ")),
        };
        format!("{whose}{warning}")
    };
    found.into_iter().map(line).collect()
}
