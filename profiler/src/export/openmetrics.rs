//! OpenMetrics text, for Prometheus and compatible programs, in seconds.

use std::borrow::Cow;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

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
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenMetrics;

impl Exporter for OpenMetrics {
    fn serialize(&self, recording: &Recording) -> Vec<u8> {
        self.serialize_runs(std::slice::from_ref(recording)).unwrap_or_default()
    }

    fn serialize_runs(&self, runs: &[Recording]) -> Option<Vec<u8>> {
        let several = runs.len() > 1;
        let runs = runs.iter().enumerate();
        let runs = runs.map(|(at, run)| Run::of(run, several.then_some(at + 1))).collect();
        let mut registry = Registry::with_prefix("profiler");
        registry.register_collector(Box::new(Runs(runs)));
        let mut text = String::new();
        let result = prometheus_client::encoding::text::encode(&mut text, &registry);
        // Writing to memory cannot fail.
        debug_assert!(result.is_ok(), "{result:?}");
        Some(text.into_bytes())
    }
}

type Labels = Vec<(&'static str, String)>;

/// The collector; it has to own its data, so it cannot borrow the recording.
#[derive(Debug)]
struct Runs(Vec<Run>);

#[derive(Debug)]
struct Run {
    labels: Labels,
    info: Labels,
    started_s: f64,
    window_s: f64,
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
        Self {
            started_s: recording.started.as_millisecond() as f64 / 1e3,
            window_s: seconds(recording.window_ns),
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

impl Collector for Runs {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let encoder = &mut encoder;
        info(encoder, &self.0)?;
        let of_runs = |value: fn(&Run) -> f64| {
            self.0.iter().map(move |run| (Cow::Borrowed(&run.labels), value(run)))
        };
        gauges(
            encoder,
            ("run_start_time", "Start of the measured window, since the epoch."),
            &Unit::Seconds,
            of_runs(|run| run.started_s),
        )?;
        gauges(
            encoder,
            ("run_window", "Length of the measured window."),
            &Unit::Seconds,
            of_runs(|run| run.window_s),
        )?;
        for of in [&DURATIONS, &INSTRUCTIONS] {
            figures(encoder, &self.0, of)?;
        }
        losses(encoder, &self.0)
    }
}

/// Names of the metrics of a meter's figures, with their help.
struct Names {
    meter: Meter,
    unit: fn() -> Unit,
    calls: (&'static str, &'static str),
    quantile: (&'static str, &'static str),
    min: (&'static str, &'static str),
    max: (&'static str, &'static str),
}

const DURATIONS: Names = Names {
    meter: Meter::Probes,
    unit: || Unit::Seconds,
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
    unit: || Unit::Other("instructions".to_owned()),
    calls: ("handler_call", "Instructions of a handler's calls in the measured window."),
    quantile: (
        "handler_call_quantile",
        "Instructions that this share of the calls did not exceed, by nearest rank.",
    ),
    min: ("handler_call_min", "Fewest instructions of a call."),
    max: ("handler_call_max", "Most instructions of a call."),
};

/// The figures of the handlers that one meter measured; nothing without such a handler.
fn figures(encoder: &mut DescriptorEncoder<'_>, runs: &[Run], of: &Names) -> fmt::Result {
    let all = runs.iter().flat_map(|run| &run.handlers);
    let handlers: Vec<&HandlerFigures> = all.filter(|handler| handler.meter == of.meter).collect();
    if handlers.is_empty() && of.meter == Meter::Exact {
        return Ok(());
    }
    let unit = (of.unit)();
    let (name, help) = of.calls;
    let mut metric = encoder.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
    for handler in &handlers {
        metric.encode_family(&handler.labels)?.encode_histogram::<NoLabelSet>(
            handler.sum,
            handler.count,
            &handler.buckets,
            None,
        )?;
    }
    let quantiles = handlers.iter().flat_map(|handler| {
        handler.quantiles.iter().map(|&(quantile, value)| {
            let mut labels = handler.labels.clone();
            labels.push(("quantile", quantile.to_owned()));
            (Cow::Owned(labels), value)
        })
    });
    gauges(encoder, of.quantile, &unit, quantiles)?;
    let of_handlers = |value: fn(&HandlerFigures) -> Option<f64>| {
        handlers.iter().filter_map(move |h| Some((Cow::Borrowed(&h.labels), value(h)?)))
    };
    gauges(encoder, of.min, &unit, of_handlers(|handler| handler.min))?;
    gauges(encoder, of.max, &unit, of_handlers(|handler| handler.max))
}

fn info(encoder: &mut DescriptorEncoder<'_>, runs: &[Run]) -> fmt::Result {
    let help = "Version, machine, kernel and module of the run.";
    let mut metric = encoder.encode_descriptor("run", help, None, MetricType::Info)?;
    for run in runs {
        metric.encode_info(&run.info)?;
    }
    Ok(())
}

/// A gauge for each of `values`.
fn gauges<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    unit: &Unit,
    values: impl Iterator<Item = (Cow<'a, Labels>, f64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, Some(unit), MetricType::Gauge)?;
    for (labels, value) in values {
        metric.encode_family(labels.as_ref())?.encode_gauge(&value)?;
    }
    Ok(())
}

fn losses(encoder: &mut DescriptorEncoder<'_>, runs: &[Run]) -> fmt::Result {
    let handlers = || runs.iter().flat_map(|run| &run.handlers);
    let help = "Upper bound on the calls of the window that are not in the histogram.";
    let mut metric =
        encoder.encode_descriptor("handler_unmeasured_calls", help, None, MetricType::Counter)?;
    for handler in handlers() {
        let mut metric = metric.encode_family(&handler.labels)?;
        metric.encode_counter::<NoLabelSet, _, f64>(&handler.unmeasured, None)?;
    }
    let help = "Calls that were not measured, or not fully, by kind.";
    let mut metric =
        encoder.encode_descriptor("handler_losses", help, None, MetricType::Counter)?;
    for handler in handlers() {
        for &(kind, count) in &handler.losses {
            let mut labels = handler.labels.clone();
            labels.push(("kind", kind.to_owned()));
            let mut metric = metric.encode_family(&labels)?;
            metric.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
        }
    }
    let help = "Calls that had not returned when the window ended.";
    let mut metric =
        encoder.encode_descriptor("handler_calls_in_flight", help, None, MetricType::Gauge)?;
    for handler in handlers() {
        metric.encode_family(&handler.labels)?.encode_gauge(&(handler.in_flight as f64))?;
    }
    Ok(())
}
