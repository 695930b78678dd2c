//! Metrics in Prometheus' text format 0.0.4.

use std::fmt::Display;

use profiler_base::stats::Durations;

use super::super::state::State;
use super::durations::{BOUNDS_NS, classic};
use super::family::{Family, Value, families, seconds};

/// All families that have points.
pub(super) fn render(state: &State) -> Vec<u8> {
    let mut text = String::new();
    for (family, points) in families(state) {
        let Family { name, help, kind, .. } = family;
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        for point in points {
            let labels: Vec<_> = family.labels.iter().copied().zip(point.labels).collect();
            match point.value {
                Value::Count(count) => sample(&mut text, name, &labels, count),
                Value::Real(value) => sample(&mut text, name, &labels, value),
                Value::Durations(durations) => histogram(&mut text, name, &labels, durations),
            }
        }
    }
    text.into_bytes()
}

fn histogram(text: &mut String, name: &str, labels: &[(&str, &str)], durations: &Durations) {
    let bounds = BOUNDS_NS.map(|ns| shortest(seconds(ns))).into_iter();
    let counts = classic(durations).into_iter().chain([durations.len()]);
    for (bound, up_to) in bounds.chain(["+Inf".to_owned()]).zip(counts) {
        let labels = [labels, &[("le", &bound)]].concat();
        sample(text, &format!("{name}_bucket"), &labels, up_to);
    }
    sample(text, &format!("{name}_sum"), labels, seconds(durations.sum_ns()));
    sample(text, &format!("{name}_count"), labels, durations.len());
}

fn sample(text: &mut String, name: &str, labels: &[(&str, &str)], value: impl Display) {
    let labels = labels.iter().map(|(name, value)| {
        let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        format!("{name}=\"{value}\"")
    });
    let labels = labels.collect::<Vec<_>>().join(",");
    let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
    text.push_str(&format!("{name}{labels} {value}\n"));
}

/// A bound as Go's `%g` writes it. Prometheus does so with the bounds of protobuf: a bound is one series in both formats.
fn shortest(bound: f64) -> String {
    if bound >= 1e-4 {
        return bound.to_string();
    }
    let text = format!("{bound:e}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => text,
    }
}
