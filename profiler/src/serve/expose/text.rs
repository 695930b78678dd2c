//! Metrics as text: Prometheus' format 0.0.4, and OpenMetrics 1.0.

use super::durations::{BOUNDS_NS, classic};
use super::family::{FAMILIES, Seen, Value};
use crate::export::exposition::{Exposition, seconds};

/// All families that have points.
pub(super) fn render(seen: &Seen<'_>, open_metrics: bool) -> Vec<u8> {
    let mut text = Exposition::new(open_metrics);
    for family in FAMILIES {
        let points = family.points(seen);
        if points.is_empty() {
            continue;
        }
        text.family(family.name, family.help, family.kind);
        for point in points {
            let labels = family.labels.iter().copied().zip(point.labels.iter().copied());
            let labels: Vec<(&str, &str)> = labels.collect();
            match point.value {
                Value::Count(count) => text.sample(family.name, &labels, count),
                Value::Real(value) => text.sample(family.name, &labels, value),
                Value::Durations(durations) => {
                    let bounds = BOUNDS_NS.into_iter().map(seconds).chain([f64::INFINITY]);
                    let counts = classic(durations).into_iter().chain([durations.len()]);
                    let sums = (seconds(durations.sum_ns()), durations.len());
                    text.histogram(family.name, &labels, bounds.zip(counts), sums);
                }
            }
        }
    }
    text.finish()
}
