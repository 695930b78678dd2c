//! Metrics of recordings for Prometheus and compatible programs, in seconds: its own format 0.0.4, which node_exporter's textfile
//! collector and `promtool check metrics` read, and OpenMetrics 1.0 with times, which
//! `promtool tsdb create-blocks-from openmetrics` reads.

use std::collections::HashMap;
use std::fmt::Display;

use super::cell::clean;
use super::exposition::{Exposition, Kind, Series, cumulative, seconds};
use crate::recording::{HandlerRecording, Meter, Recording};

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
    let mut text = Exposition::new(open_metrics);
    write_runs(&mut text, &runs);
    for names in [&DURATIONS, &INSTRUCTIONS] {
        let is_of = |of: &&Handler<'_>| of.recording.meter == names.meter;
        let of_meter: Vec<&Handler<'_>> = handlers.iter().filter(is_of).collect();
        if !of_meter.is_empty() {
            write_figures(&mut text, &of_meter, names);
        }
    }
    write_losses(&mut text, &handlers);
    text.finish()
}

struct Run<'a> {
    recording: &'a Recording,
    series: Series,
    started_s: f64,
}

/// A handler in a run.
struct Handler<'a> {
    recording: &'a Recording,
    of: &'a HandlerRecording,
    series: Series,
}

impl<'a> Run<'a> {
    fn of(recording: &'a Recording, number: Option<usize>) -> Self {
        // A query must be able to separate virtual time from the wall clock.
        let mut labels = vec![("clock", recording.clock.to_string())];
        labels.extend(number.map(|number| ("run", number.to_string())));
        let started_s = recording.started.as_millisecond() as f64 / 1e3;
        let ended_s = ((started_s + seconds(recording.window_ns)) * 1e3).round() / 1e3;
        Self { recording, series: Series { labels, at: Some(ended_s) }, started_s }
    }

    fn info(&self) -> Series {
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
        let mut info = self.series.clone();
        info.labels.extend(known);
        info
    }
}

impl<'a> Handler<'a> {
    fn all(run: &Run<'a>) -> Vec<Self> {
        let mut seen: HashMap<[String; 2], usize> = HashMap::new();
        let mut all = Vec::new();
        for of in &run.recording.handlers {
            let module = of.module.as_deref().unwrap_or_default();
            let [name, module] = [&*of.name, module].map(|text| clean(text).into_owned());
            let mut labels =
                vec![("handler", name.clone()), ("module", module.clone()), ("backend", of.way())];
            // Two names may look alike, and no series may be there twice.
            let number = seen.entry([name, module]).and_modify(|number| *number += 1).or_insert(1);
            labels.extend((*number > 1).then(|| ("number", number.to_string())));
            labels.extend(run.series.labels.iter().cloned());
            let series = Series { labels, at: run.series.at };
            all.push(Self { recording: run.recording, of, series });
        }
        all
    }

    /// Calls up to each bound, infinity last.
    fn buckets(&self, figure: fn(u64) -> f64) -> Vec<(f64, u64)> {
        let highest = self.recording.histogram.highest_ns;
        let stored = self.of.histogram.buckets.iter().map(|bucket| (bucket.to_ns, bucket.count));
        let mut up_to = cumulative(stored);
        let bounds = (FIRST_BOUND..u64::BITS - 1)
            .flat_map(|exponent| [(1_u64 << exponent) - 1, (3_u64 << (exponent - 1)) - 1])
            .take_while(|&bound| bound < highest);
        let mut found: Vec<_> = bounds.map(|bound| (figure(bound), up_to(bound))).collect();
        found.push((f64::INFINITY, up_to(u64::MAX)));
        found
    }

    fn sums(&self, of: &Names) -> (f64, u64) {
        ((of.figure)(self.of.sum_ns), self.of.count)
    }
}

/// Words of the metrics of a meter's figures.
struct Names {
    meter: Meter,
    /// A figure in the unit.
    figure: fn(u64) -> f64,
    what: &'static str,
    unit: &'static str,
    /// For the help.
    words: &'static str,
}

const DURATIONS: Names = Names {
    meter: Meter::Probes,
    figure: seconds,
    what: "duration",
    unit: "seconds",
    words: "Duration",
};

const INSTRUCTIONS: Names = Names {
    meter: Meter::Exact,
    figure: |instructions| instructions as f64,
    what: "call",
    unit: "instructions",
    words: "Instructions",
};

impl Names {
    fn name(&self, figure: &str) -> String {
        format!("profiler_handler_{}{figure}_{}", self.what, self.unit)
    }
}

/// A family with a sample of each.
fn write<'a, V: Display>(
    text: &mut Exposition,
    (name, help, kind): (&str, &str, Kind),
    samples: impl IntoIterator<Item = (&'a Series, V)>,
) {
    text.family(name, help, kind);
    for (series, value) in samples {
        text.sample(name, series, None, value);
    }
}

fn write_runs(text: &mut Exposition, runs: &[Run<'_>]) {
    let infos: Vec<Series> = runs.iter().map(Run::info).collect();
    let help = "Version, machine, kernel and module of the run.";
    write(text, ("profiler_run_info", help, Kind::Info), infos.iter().map(|info| (info, 1)));
    let help = "Start of the measured window, since the epoch.";
    let started = runs.iter().map(|run| (&run.series, run.started_s));
    write(text, ("profiler_run_start_time_seconds", help, Kind::Gauge), started);
    let help = "Length of the measured window.";
    let windows = runs.iter().map(|run| (&run.series, seconds(run.recording.window_ns)));
    write(text, ("profiler_run_window_seconds", help, Kind::Gauge), windows);
}

/// The figures of the handlers that one meter measured.
fn write_figures(text: &mut Exposition, handlers: &[&Handler<'_>], of: &Names) {
    let Names { figure, words, .. } = of;
    let name = of.name("");
    let help = format!("{words} of a handler's calls in the measured window.");
    text.family(&name, &help, Kind::Histogram);
    for handler in handlers {
        text.histogram(&name, &handler.series, handler.buckets(*figure), handler.sums(of));
    }
    let name = of.name("_quantile");
    let help = format!("{words} that this share of the calls did not exceed, by nearest rank.");
    text.family(&name, &help, Kind::Summary);
    for handler in handlers {
        for (label, quantile) in QUANTILES {
            if let Some(value) = handler.of.quantile_ns(quantile) {
                text.sample(&name, &handler.series, Some(("quantile", label)), figure(value));
            }
        }
        text.sums(&name, &handler.series, handler.sums(of));
    }
    let min = handlers.iter().filter_map(|of| Some((&of.series, figure(of.of.min_ns?))));
    let help = format!("{words} of the shortest call, exact.");
    write(text, (&of.name("_min"), &help, Kind::Gauge), min);
    let max = handlers.iter().filter_map(|of| Some((&of.series, figure(of.of.max_ns?))));
    let help = format!("{words} of the longest call, exact.");
    write(text, (&of.name("_max"), &help, Kind::Gauge), max);
}

fn write_losses(text: &mut Exposition, handlers: &[Handler<'_>]) {
    let help = "Upper bound on the calls of the window that are not in the histogram.";
    let unmeasured = handlers.iter().map(|of| (&of.series, of.of.losses.unmeasured()));
    let name = "profiler_handler_unmeasured_calls_total";
    write(text, (name, help, Kind::Counter), unmeasured);
    let name = "profiler_handler_losses_total";
    text.family(name, "Calls that were not measured, or not fully, by kind.", Kind::Counter);
    for handler in handlers {
        let losses = &handler.of.losses;
        let usual = [
            ("lost", losses.lost),
            ("missed", losses.missed),
            ("unpaired_exit", losses.unpaired_exits),
            ("over_range", losses.over_range),
        ];
        for (kind, count) in usual.into_iter().chain(losses.rare()) {
            text.sample(name, &handler.series, Some(("kind", kind)), count);
        }
    }
    let help = "Calls that had not returned when the window ended.";
    let in_flight = handlers.iter().map(|of| (&of.series, of.of.losses.in_flight));
    write(text, ("profiler_handler_calls_in_flight", help, Kind::Gauge), in_flight);
}
