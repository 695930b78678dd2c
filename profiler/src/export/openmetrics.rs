//! Text for Prometheus and compatible programs, in seconds: its own format 0.0.4, which node_exporter's textfile collector and
//! `promtool check metrics` read, and OpenMetrics 1.0 with times, which `promtool tsdb create-blocks-from openmetrics` reads.

use std::collections::HashMap;
use std::fmt::Display;

use super::cell::clean;
use crate::recording::{HandlerRecording, HistogramLayout, Meter, Recording};

/// Exponent of the first bound of the classic buckets: 31 ns.
const FIRST_BOUND: u32 = 5;
/// Quantiles given besides the buckets, which are too wide to compute them from.
const QUANTILES: [(&str, f64); 5] =
    [("0.5", 0.50), ("0.9", 0.90), ("0.95", 0.95), ("0.99", 0.99), ("0.999", 0.999)];

/// Metrics of each handler, and of the run: OpenMetrics 1.0, each sample with the end of its run's window, or Prometheus' text
/// format 0.0.4, without times, which a textfile collector refuses.
///
/// Buckets end one nanosecond below each power of two and 1.5 times each power of two. Buckets of the
/// recording end there, too, so counts are exact. All handlers, runs and machines have the same ones, so
/// that they can be added up.
pub(super) fn text(runs: &[Recording], open_metrics: bool) -> Vec<u8> {
    let several = runs.len() > 1;
    let numbered = runs.iter().enumerate();
    let runs: Vec<Run<'_>> =
        numbered.map(|(at, run)| Run::of(run, several.then_some(at + 1))).collect();
    let handlers: Vec<Handler<'_>> = runs.iter().flat_map(Handler::all).collect();
    let mut text = Text { open_metrics, text: String::new() };
    text.runs(&runs);
    for names in [&DURATIONS, &INSTRUCTIONS] {
        let is_of = |of: &&Handler<'_>| of.run.recording.meter == names.meter;
        let of_meter: Vec<&Handler<'_>> = handlers.iter().filter(is_of).collect();
        if !of_meter.is_empty() {
            text.figures(&of_meter, names);
        }
    }
    text.losses(&handlers);
    if open_metrics {
        text.text.push_str("# EOF\n");
    }
    text.text.into_bytes()
}

type Labels = Vec<(&'static str, String)>;

struct Run<'a> {
    recording: &'a Recording,
    labels: Labels,
    started_s: f64,
    ended_s: f64,
}

/// A handler in a run.
struct Handler<'a> {
    run: &'a Run<'a>,
    of: &'a HandlerRecording,
    labels: Labels,
}

impl<'a> Run<'a> {
    fn of(recording: &'a Recording, number: Option<usize>) -> Self {
        // A query must be able to separate virtual time from the wall clock.
        let mut labels: Labels = vec![("clock", recording.clock.to_string())];
        labels.extend(number.map(|number| ("run", number.to_string())));
        let started_s = recording.started.as_millisecond() as f64 / 1e3;
        let ended_s = ((started_s + seconds(recording.window_ns)) * 1e3).round() / 1e3;
        Self { recording, labels, started_s, ended_s }
    }

    fn info(&self) -> Labels {
        let Recording { tool, host, modules, .. } = self.recording;
        let module = if let [module] = modules.as_slice() { Some(module) } else { None };
        let facts = [
            ("version", Some(tool.version.as_str())),
            ("arch", Some(host.arch.as_str())),
            ("kernel", host.kernel_release.as_deref()),
            ("cpu_model", host.cpu_model.as_deref()),
            ("module", module.map(|module| module.name.as_str())),
            ("module_build_id", module.and_then(|module| module.build_id.as_deref())),
        ];
        let known =
            facts.into_iter().filter_map(|(name, fact)| Some((name, clean(fact?).into_owned())));
        self.labels.iter().cloned().chain(known).collect()
    }
}

impl<'a> Handler<'a> {
    fn all(run: &'a Run<'a>) -> impl Iterator<Item = Self> {
        let mut seen: HashMap<[String; 2], usize> = HashMap::new();
        run.recording.handlers.iter().map(move |of| {
            let module = of.module.as_deref().unwrap_or_default();
            let [name, module] = [&*of.name, module].map(|text| clean(text).into_owned());
            let mut labels =
                vec![("handler", name.clone()), ("module", module.clone()), ("backend", of.way())];
            // Two names may look alike, and no series may be there twice.
            let number = seen.entry([name, module]).and_modify(|number| *number += 1).or_insert(1);
            labels.extend((*number > 1).then(|| ("number", number.to_string())));
            labels.extend(run.labels.iter().cloned());
            Self { run, of, labels }
        })
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
    /// A figure in that unit.
    figure: fn(u64) -> f64,
    calls: (&'static str, &'static str),
    quantile: (&'static str, &'static str),
    min: (&'static str, &'static str),
    max: (&'static str, &'static str),
}

const DURATIONS: Names = Names {
    meter: Meter::Probes,
    unit: "seconds",
    figure: seconds,
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
    figure: |instructions| instructions as f64,
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
    open_metrics: bool,
    text: String,
}

impl Text {
    /// The head of a family; returns its whole name.
    fn family(&mut self, (name, help): (&str, &str), unit: Option<&str>, kind: Kind) -> String {
        let unit_suffix = unit.map_or(String::new(), |unit| format!("_{unit}"));
        let name = format!("profiler_{name}{unit_suffix}");
        // Format 0.0.4 has no type `info`, and names counters as their samples.
        let (head, kind) = match (self.open_metrics, kind) {
            (false, Kind::Info) => (format!("{name}_info"), Kind::Gauge),
            (false, Kind::Counter) => (format!("{name}_total"), kind),
            (_, kind) => (name.clone(), kind),
        };
        self.text.push_str(&format!("# HELP {head} {help}\n# TYPE {head} {kind}\n"));
        if let (true, Some(unit)) = (self.open_metrics, unit) {
            self.text.push_str(&format!("# UNIT {head} {unit}\n"));
        }
        name
    }

    fn sample(&mut self, name: &str, labels: &Labels, value: impl Display, run: &Run<'_>) {
        let pairs = pairs(labels.iter().map(|(name, value)| (*name, value.as_str())));
        self.text.push_str(&format!("{name}{{{pairs}}} {value}"));
        if self.open_metrics {
            self.text.push_str(&format!(" {}", run.ended_s));
        }
        self.text.push('\n');
    }

    /// A sample of a handler, with a further label if `more` has one.
    fn of_handler(
        &mut self,
        name: &str,
        handler: &Handler<'_>,
        more: Option<(&'static str, String)>,
        value: impl Display,
    ) {
        let labels = handler.labels.iter().cloned().chain(more).collect();
        self.sample(name, &labels, value, handler.run);
    }

    fn runs(&mut self, runs: &[Run<'_>]) {
        let head = ("run", "Version, machine, kernel and module of the run.");
        let name = self.family(head, None, Kind::Info) + "_info";
        for run in runs {
            self.sample(&name, &run.info(), 1, run);
        }
        let head = ("run_start_time", "Start of the measured window, since the epoch.");
        let name = self.family(head, Some("seconds"), Kind::Gauge);
        for run in runs {
            self.sample(&name, &run.labels, run.started_s, run);
        }
        let head = ("run_window", "Length of the measured window.");
        let name = self.family(head, Some("seconds"), Kind::Gauge);
        for run in runs {
            self.sample(&name, &run.labels, seconds(run.recording.window_ns), run);
        }
    }

    /// The figures of the handlers that one meter measured.
    fn figures(&mut self, handlers: &[&Handler<'_>], of: &Names) {
        let name = self.family(of.calls, Some(of.unit), Kind::Histogram);
        for handler in handlers {
            let mut count = 0_u64;
            for (bound, more) in buckets(handler.of, &handler.run.recording.histogram, of.figure) {
                count = count.saturating_add(more);
                let bound = Some(("le", shortest(bound)));
                self.of_handler(&format!("{name}_bucket"), handler, bound, count);
            }
            self.sums(&name, handler, of);
        }
        let name = self.family(of.quantile, Some(of.unit), Kind::Summary);
        for handler in handlers {
            for (label, quantile) in QUANTILES {
                if let Some(value) = handler.of.quantile_ns(quantile) {
                    let quantile = Some(("quantile", label.to_owned()));
                    self.of_handler(&name, handler, quantile, (of.figure)(value));
                }
            }
            self.sums(&name, handler, of);
        }
        type Value = fn(&HandlerRecording) -> Option<u64>;
        for (head, value) in [(of.min, (|h| h.min_ns) as Value), (of.max, |h| h.max_ns)] {
            let name = self.family(head, Some(of.unit), Kind::Gauge);
            for handler in handlers {
                if let Some(value) = value(handler.of) {
                    self.of_handler(&name, handler, None, (of.figure)(value));
                }
            }
        }
    }

    fn sums(&mut self, name: &str, handler: &Handler<'_>, of: &Names) {
        self.of_handler(&format!("{name}_sum"), handler, None, (of.figure)(handler.of.sum_ns));
        self.of_handler(&format!("{name}_count"), handler, None, handler.of.count);
    }

    fn losses(&mut self, handlers: &[Handler<'_>]) {
        let help = "Upper bound on the calls of the window that are not in the histogram.";
        let name = self.family(("handler_unmeasured_calls", help), None, Kind::Counter) + "_total";
        for handler in handlers {
            self.of_handler(&name, handler, None, handler.of.losses.unmeasured());
        }
        let help = "Calls that were not measured, or not fully, by kind.";
        let name = self.family(("handler_losses", help), None, Kind::Counter) + "_total";
        for handler in handlers {
            let losses = &handler.of.losses;
            let usual = [
                ("lost", losses.lost),
                ("missed", losses.missed),
                ("unpaired_exit", losses.unpaired_exits),
                ("over_range", losses.over_range),
            ];
            for (kind, count) in usual.into_iter().chain(losses.rare()) {
                self.of_handler(&name, handler, Some(("kind", kind.to_owned())), count);
            }
        }
        let help = "Calls that had not returned when the window ended.";
        let name = self.family(("handler_calls_in_flight", help), None, Kind::Gauge);
        for handler in handlers {
            self.of_handler(&name, handler, None, handler.of.losses.in_flight);
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
