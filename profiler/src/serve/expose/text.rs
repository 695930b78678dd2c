//! Metrics as text: Prometheus' format 0.0.4, and OpenMetrics 1.0.

use std::fmt::{self, Write as _};

use super::durations::{BOUNDS_NS, classic};
use super::family::{FAMILIES, Family, Kind, Point, Seen, Value, seconds};
use crate::export::openmetrics::{pairs, shortest};
use crate::stats::Durations;

/// All families that have points.
pub(super) fn render(seen: &Seen<'_>, open_metrics: bool) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_all(&mut text, seen, open_metrics);
    text
}

fn write_all(text: &mut String, seen: &Seen<'_>, open_metrics: bool) -> fmt::Result {
    for family in FAMILIES {
        let points = family.points(seen);
        if points.is_empty() {
            continue;
        }
        let (name, kind) = match (open_metrics, family.kind) {
            (true, _) => (family.base(), family.kind),
            // That format knows no info.
            (false, Kind::Info) => (family.name, Kind::Gauge),
            (false, kind) => (family.name, kind),
        };
        writeln!(text, "# HELP {name} {}", family.help)?;
        writeln!(text, "# TYPE {name} {kind}")?;
        if let (true, Some(unit)) = (open_metrics, family.unit()) {
            writeln!(text, "# UNIT {name} {unit}")?;
        }
        for point in &points {
            write_point(text, family, point)?;
        }
    }
    if open_metrics {
        text.push_str("# EOF\n");
    }
    Ok(())
}

fn write_point(text: &mut String, family: &Family, point: &Point<'_>) -> fmt::Result {
    let labels = pairs(family.labels.iter().copied().zip(point.labels.iter().copied()));
    let (name, braced) = (family.name, braces(&labels, ""));
    match point.value {
        Value::Count(count) => writeln!(text, "{name}{braced} {count}"),
        Value::Real(value) => writeln!(text, "{name}{braced} {value}"),
        Value::Durations(durations) => write_durations(text, name, &labels, durations),
    }
}

fn write_durations(
    text: &mut String,
    name: &str,
    labels: &str,
    durations: &Durations,
) -> fmt::Result {
    for (bound, count) in BOUNDS_NS.iter().zip(classic(durations)) {
        let le = format!("le=\"{}\"", shortest(seconds(*bound)));
        writeln!(text, "{name}_bucket{} {count}", braces(labels, &le))?;
    }
    writeln!(text, "{name}_bucket{} {}", braces(labels, "le=\"+Inf\""), durations.len())?;
    let braced = braces(labels, "");
    writeln!(text, "{name}_sum{braced} {}", seconds(durations.sum_ns()))?;
    writeln!(text, "{name}_count{braced} {}", durations.len())
}

fn braces(labels: &str, more: &str) -> String {
    match (labels, more) {
        ("", "") => String::new(),
        ("", one) | (one, "") => format!("{{{one}}}"),
        (labels, more) => format!("{{{labels},{more}}}"),
    }
}
