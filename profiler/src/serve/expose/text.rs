//! Metrics as text: Prometheus' format 0.0.4, and OpenMetrics 1.0.

use std::fmt::{self, Write as _};

use super::durations::{BOUNDS_NS, classic};
use super::family::{FAMILIES, Family, Kind, Point, Seen, Value, seconds};
use crate::recording::HandlerRecording;

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
    let labels = labels(family, point);
    let (name, braced) = (family.name, braces(&labels, ""));
    match point.value {
        Value::Count(count) => writeln!(text, "{name}{braced} {count}"),
        Value::Real(value) => writeln!(text, "{name}{braced} {value}"),
        Value::Durations(handler) => write_durations(text, name, &labels, handler),
    }
}

fn write_durations(
    text: &mut String,
    name: &str,
    labels: &str,
    handler: &HandlerRecording,
) -> fmt::Result {
    for (bound, count) in BOUNDS_NS.iter().zip(classic(handler)) {
        let le = format!("le=\"{}\"", shortest(seconds(*bound)));
        writeln!(text, "{name}_bucket{} {count}", braces(labels, &le))?;
    }
    writeln!(text, "{name}_bucket{} {}", braces(labels, "le=\"+Inf\""), handler.count)?;
    let braced = braces(labels, "");
    writeln!(text, "{name}_sum{braced} {}", seconds(handler.sum_ns))?;
    writeln!(text, "{name}_count{braced} {}", handler.count)
}

/// `a="b",c="d"`, with the values escaped.
fn labels(family: &Family, point: &Point<'_>) -> String {
    let mut text = String::new();
    for (name, value) in family.labels.iter().zip(&point.labels) {
        let comma = if text.is_empty() { "" } else { "," };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        text.push_str(&format!("{comma}{name}=\"{value}\""));
    }
    text
}

fn braces(labels: &str, more: &str) -> String {
    match (labels, more) {
        ("", "") => String::new(),
        ("", one) | (one, "") => format!("{{{one}}}"),
        (labels, more) => format!("{{{labels},{more}}}"),
    }
}

/// A bound as Go's `%g` writes it. Prometheus writes those of protobuf so: a bound is one series, however it was scraped.
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
