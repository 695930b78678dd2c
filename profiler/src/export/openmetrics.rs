//! Text for Prometheus and compatible programs, in seconds: its own format 0.0.4, which node_exporter's textfile collector and
//! `promtool check metrics` read, and OpenMetrics 1.0 with times, which `promtool tsdb create-blocks-from openmetrics` reads.

use std::fmt::Display;

use super::Exporter;
use super::cell::clean;
use crate::recording::{HandlerRecording, HistogramLayout, Meter, Recording};

/// Exponent of the first bound of the classic buckets: 31 ns.
const FIRST_BOUND: u32 = 5;
/// Quantiles given besides the buckets, which are too wide to compute them from.
const QUANTILES: [(&str, f64); 5] =
    [("0.5", 0.50), ("0.9", 0.90), ("0.95", 0.95), ("0.99", 0.99), ("0.999", 0.999)];

/// Metrics of each handler, and of the run.
///
/// Buckets end one nanosecond below each power of two and 1.5 times each power of two. Buckets of the
/// recording end there, too, so counts are exact. All handlers, runs and machines have the same ones, so
/// that they can be added up.
#[derive(Debug, Clone, Copy)]
pub enum Metrics {
    /// Prometheus' text format 0.0.4: without times, which a textfile collector refuses.
    Prometheus,
    /// OpenMetrics 1.0, each sample with the end of its run's window.
    OpenMetrics,
}

impl Exporter for Metrics {
    fn serialize(&self, recording: &Recording) -> Vec<u8> {
        self.serialize_runs(std::slice::from_ref(recording)).unwrap_or_default()
    }

    fn serialize_runs(&self, runs: &[Recording]) -> Option<Vec<u8>> {
        let several = runs.len() > 1;
        let runs = runs.iter().enumerate();
        let runs: Vec<Run> =
            runs.map(|(at, run)| Run::of(run, several.then_some(at + 1))).collect();
        let mut text = Text { format: *self, text: String::new() };
        text.runs(&runs);
        for names in [&DURATIONS, &INSTRUCTIONS] {
            text.figures(&runs, names);
        }
        text.losses(&runs);
        if matches!(self, Self::OpenMetrics) {
            text.text.push_str("# EOF\n");
        }
        Some(text.text.into_bytes())
    }
}

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
struct Run {
    labels: Labels,
    info: Labels,
    started_s: f64,
    window_s: f64,
    ended_s: f64,
    handlers: Vec<HandlerFigures>,
}

/// Figures in seconds, or in instructions.
#[derive(Debug)]
struct HandlerFigures {
    labels: Labels,
    meter: Meter,
    count: u64,
    sum: f64,
    min: Option<f64>,
    max: Option<f64>,
    quantiles: Vec<(&'static str, f64)>,
    /// Upper bound, and number of calls above the previous bound.
    buckets: Vec<(f64, u64)>,
    in_flight: u64,
    unmeasured: u64,
    /// Losses by kind.
    losses: Vec<(&'static str, u64)>,
}

impl Run {
    fn of(recording: &Recording, number: Option<usize>) -> Self {
        let text = |text: &str| clean(text).into_owned();
        // A query must be able to separate virtual time from the wall clock.
        let mut labels: Labels = vec![("clock", recording.clock.to_string())];
        labels.extend(number.map(|number| ("run", number.to_string())));
        let mut info = labels.clone();
        info.push(("version", text(&recording.tool.version)));
        info.push(("arch", text(&recording.host.arch)));
        let mut fact = |name, fact: &Option<String>| {
            info.extend(fact.as_deref().map(|fact| (name, text(fact))));
        };
        fact("kernel", &recording.host.kernel_release);
        fact("cpu_model", &recording.host.cpu_model);
        if let [module] = recording.modules.as_slice() {
            fact("module", &Some(module.name.clone()));
            fact("module_build_id", &module.build_id);
        }
        let handler = |handler| HandlerFigures::of(handler, recording, &labels);
        let started_s = recording.started.as_millisecond() as f64 / 1e3;
        let window_s = seconds(recording.window_ns);
        Self {
            started_s,
            window_s,
            ended_s: ((started_s + window_s) * 1e3).round() / 1e3,
            handlers: recording.handlers.iter().map(handler).collect(),
            info,
            labels,
        }
    }
}

impl HandlerFigures {
    fn of(handler: &HandlerRecording, recording: &Recording, run: &Labels) -> Self {
        let figure = match recording.meter {
            Meter::Probes => seconds,
            Meter::Exact => |instructions| instructions as f64,
        };
        let text = |text: &str| clean(text).into_owned();
        let mut labels = vec![
            ("handler", text(&handler.name)),
            ("module", handler.module.as_deref().map_or_else(String::new, text)),
            ("backend", handler.way()),
        ];
        labels.extend(run.iter().cloned());
        let losses = &handler.losses;
        let quantile = |&(label, quantile): &(&'static str, f64)| {
            handler.quantile_ns(quantile).map(|ns| (label, figure(ns)))
        };
        Self {
            labels,
            count: handler.count,
            meter: recording.meter,
            sum: figure(handler.sum_ns),
            min: handler.min_ns.map(figure),
            max: handler.max_ns.map(figure),
            quantiles: QUANTILES.iter().filter_map(quantile).collect(),
            buckets: buckets(handler, &recording.histogram, figure),
            in_flight: losses.in_flight,
            unmeasured: losses.unmeasured(),
            losses: [
                ("lost", losses.lost),
                ("missed", losses.missed),
                ("unpaired_exit", losses.unpaired_exits),
                ("over_range", losses.over_range),
            ]
            .into_iter()
            .chain(losses.rare())
            .collect(),
        }
    }
}

/// Nanoseconds as seconds.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Calls up to each bound and above the one before, the last bound being infinity.
fn buckets(
    handler: &HandlerRecording,
    layout: &HistogramLayout,
    figure: fn(u64) -> f64,
) -> Vec<(f64, u64)> {
    let bounds = (FIRST_BOUND..u64::BITS - 1)
        .flat_map(|exponent| [(1_u64 << exponent) - 1, (3_u64 << (exponent - 1)) - 1])
        .take_while(|&bound| bound < layout.highest_ns);
    let mut stored = handler.histogram.buckets.iter().peekable();
    let mut found: Vec<(f64, u64)> = bounds
        .map(|bound| {
            let mut count = 0_u64;
            while let Some(bucket) = stored.next_if(|bucket| bucket.to_ns <= bound) {
                count = count.saturating_add(bucket.count);
            }
            (figure(bound), count)
        })
        .collect();
    let rest = stored.fold(0_u64, |sum, bucket| sum.saturating_add(bucket.count));
    found.push((f64::INFINITY, rest));
    found
}

/// Names of the metrics of a meter's figures, with their help.
struct Names {
    meter: Meter,
    unit: &'static str,
    calls: (&'static str, &'static str),
    quantile: (&'static str, &'static str),
    min: (&'static str, &'static str),
    max: (&'static str, &'static str),
}

const DURATIONS: Names = Names {
    meter: Meter::Probes,
    unit: "seconds",
    calls: ("handler_duration", "Durations of a handler's calls in the measured window."),
    quantile: (
        "handler_duration_quantile",
        "Duration that this share of the calls did not exceed, by nearest rank.",
    ),
    min: ("handler_duration_min", "Exact shortest duration."),
    max: ("handler_duration_max", "Exact longest duration."),
};

const INSTRUCTIONS: Names = Names {
    meter: Meter::Exact,
    unit: "instructions",
    calls: ("handler_call", "Instructions of a handler's calls in the measured window."),
    quantile: (
        "handler_call_quantile",
        "Instructions that this share of the calls did not exceed, by nearest rank.",
    ),
    min: ("handler_call_min", "Fewest instructions of a call."),
    max: ("handler_call_max", "Most instructions of a call."),
};

/// What a family's samples are, by Prometheus' words.
#[derive(Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
enum Kind {
    Counter,
    Gauge,
    Info,
    Histogram,
    Summary,
}

/// What is being written.
struct Text {
    format: Metrics,
    text: String,
}

impl Text {
    /// The head of a family; returns its whole name.
    fn family(&mut self, (name, help): (&str, &str), unit: Option<&str>, kind: Kind) -> String {
        let unit_suffix = unit.map_or(String::new(), |unit| format!("_{unit}"));
        let name = format!("profiler_{name}{unit_suffix}");
        // Format 0.0.4 has no type `info`, and names counters as their samples.
        let (head, kind) = match (self.format, kind) {
            (Metrics::Prometheus, Kind::Info) => (format!("{name}_info"), Kind::Gauge),
            (Metrics::Prometheus, Kind::Counter) => (format!("{name}_total"), kind),
            (_, kind) => (name.clone(), kind),
        };
        self.text.push_str(&format!("# HELP {head} {help}\n# TYPE {head} {kind}\n"));
        if let (Metrics::OpenMetrics, Some(unit)) = (self.format, unit) {
            self.text.push_str(&format!("# UNIT {head} {unit}\n"));
        }
        name
    }

    fn sample(&mut self, name: &str, labels: &Labels, value: impl Display, run: &Run) {
        self.sample_of(name, labels, None, value, run);
    }

    /// One with a further label.
    fn sample_of(
        &mut self,
        name: &str,
        labels: &Labels,
        more: Option<(&str, &str)>,
        value: impl Display,
        run: &Run,
    ) {
        let all = labels.iter().map(|(name, value)| (*name, value.as_str())).chain(more);
        self.text.push_str(&format!("{name}{{{}}} {value}", pairs(all)));
        if matches!(self.format, Metrics::OpenMetrics) {
            self.text.push_str(&format!(" {}", run.ended_s));
        }
        self.text.push('\n');
    }

    fn runs(&mut self, runs: &[Run]) {
        let head = ("run", "Version, machine, kernel and module of the run.");
        let name = self.family(head, None, Kind::Info);
        for run in runs {
            self.sample(&format!("{name}_info"), &run.info, 1, run);
        }
        let head = ("run_start_time", "Start of the measured window, since the epoch.");
        self.gauges(runs, head, |run| run.started_s);
        self.gauges(runs, ("run_window", "Length of the measured window."), |run| run.window_s);
    }

    /// A gauge of each run, in seconds.
    fn gauges(&mut self, runs: &[Run], head: (&str, &str), value: fn(&Run) -> f64) {
        let name = self.family(head, Some("seconds"), Kind::Gauge);
        for run in runs {
            self.sample(&name, &run.labels, value(run), run);
        }
    }

    /// The figures of the handlers that one meter measured; nothing without such a handler.
    fn figures(&mut self, runs: &[Run], of: &Names) {
        let is_of = |handler: &&HandlerFigures| handler.meter == of.meter;
        let handlers =
            || runs.iter().flat_map(|run| run.handlers.iter().filter(is_of).map(move |h| (run, h)));
        if handlers().next().is_none() {
            return;
        }
        let name = self.family(of.calls, Some(of.unit), Kind::Histogram);
        for (run, handler) in handlers() {
            let mut count = 0_u64;
            for (bound, more) in &handler.buckets {
                count = count.saturating_add(*more);
                let bound = shortest(*bound);
                let bucket = format!("{name}_bucket");
                self.sample_of(&bucket, &handler.labels, Some(("le", &bound)), count, run);
            }
            self.sums(&name, run, handler);
        }
        let name = self.family(of.quantile, Some(of.unit), Kind::Summary);
        for (run, handler) in handlers() {
            for (quantile, value) in &handler.quantiles {
                let quantile = Some(("quantile", *quantile));
                self.sample_of(&name, &handler.labels, quantile, value, run);
            }
            self.sums(&name, run, handler);
        }
        type Value = fn(&HandlerFigures) -> Option<f64>;
        for (head, value) in [(of.min, (|h| h.min) as Value), (of.max, |h| h.max)] {
            let name = self.family(head, Some(of.unit), Kind::Gauge);
            for (run, handler) in handlers() {
                if let Some(value) = value(handler) {
                    self.sample(&name, &handler.labels, value, run);
                }
            }
        }
    }

    fn sums(&mut self, name: &str, run: &Run, handler: &HandlerFigures) {
        self.sample(&format!("{name}_sum"), &handler.labels, handler.sum, run);
        self.sample(&format!("{name}_count"), &handler.labels, handler.count, run);
    }

    fn losses(&mut self, runs: &[Run]) {
        let handlers = || runs.iter().flat_map(|run| run.handlers.iter().map(move |h| (run, h)));
        let help = "Upper bound on the calls of the window that are not in the histogram.";
        let name = self.family(("handler_unmeasured_calls", help), None, Kind::Counter) + "_total";
        for (run, handler) in handlers() {
            self.sample(&name, &handler.labels, handler.unmeasured, run);
        }
        let help = "Calls that were not measured, or not fully, by kind.";
        let name = self.family(("handler_losses", help), None, Kind::Counter) + "_total";
        for (run, handler) in handlers() {
            for (kind, count) in &handler.losses {
                self.sample_of(&name, &handler.labels, Some(("kind", kind)), count, run);
            }
        }
        let help = "Calls that had not returned when the window ended.";
        let name = self.family(("handler_calls_in_flight", help), None, Kind::Gauge);
        for (run, handler) in handlers() {
            self.sample(&name, &handler.labels, handler.in_flight, run);
        }
    }
}

/// `a="b",c="d"`, with the values escaped.
pub(crate) fn pairs<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    for (name, value) in labels {
        let comma = if text.is_empty() { "" } else { "," };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        text.push_str(&format!("{comma}{name}=\"{value}\""));
    }
    text
}

/// A bound as Go's `%g` writes it. Prometheus writes those of protobuf so: a bound is one series, however it was scraped.
pub(crate) fn shortest(bound: f64) -> String {
    if bound == f64::INFINITY {
        return "+Inf".to_owned();
    }
    if bound >= 1e-4 {
        return bound.to_string();
    }
    let text = format!("{bound:e}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => text,
    }
}
