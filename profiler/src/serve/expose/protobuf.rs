//! Metrics as `io.prometheus.client.MetricFamily`, one after the other, each behind its length. Numbers of fields are those of
//! `io/prometheus/client/metrics.proto` (github.com/prometheus/client_model, from 0.3 on).

use prost::encoding;

use profiler_base::stats::Durations;

use super::super::message::Message;
use super::super::state::State;
use super::durations::{BOUNDS_NS, Native, SCHEMA, ZERO_THRESHOLD, classic, native};
use super::family::{Family, Kind, Point, Value, families, seconds};

/// All families that have points.
pub(super) fn render(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (family, points) in families(state) {
        // Its number, and the field that a metric has of it.
        let (kind, field) = match family.kind {
            Kind::Counter => (0, 3),
            Kind::Gauge => (1, 2),
            Kind::Histogram => (4, 7),
        };
        let message = Message::default()
            .text(1, family.name)
            .text(2, family.help)
            .number(3, kind)
            .messages(4, points.iter().map(|point| metric(family, point, field)));
        let message = match family.unit() {
            Some(unit) => message.text(5, unit),
            None => message,
        };
        encoding::encode_varint(message.0.len() as u64, &mut bytes);
        bytes.extend(message.0);
    }
    bytes
}

fn metric(family: &Family, point: &Point<'_>, field: u32) -> Message {
    let labels = family.labels.iter().zip(&point.labels);
    let labels = labels.map(|(name, value)| Message::default().text(1, name).text(2, value));
    let value = match point.value {
        Value::Durations(durations) => histogram(durations),
        Value::Count(count) => Message::default().double(1, count as f64),
        Value::Real(value) => Message::default().double(1, value),
    };
    Message::default().messages(1, labels).message(field, value)
}

/// Both classic and native: the scraper takes what it wants.
fn histogram(durations: &Durations) -> Message {
    let Native { zero, buckets } = native(durations);
    let bounds = BOUNDS_NS.iter().zip(classic(durations));
    let bounds =
        bounds.map(|(ns, count)| Message::default().number(1, count).double(2, seconds(*ns)));
    let spans = spans(&buckets).into_iter();
    let spans =
        spans.map(|(offset, length)| Message::default().signed(1, offset.into()).number(2, length));
    let message = Message::default()
        .number(1, durations.len())
        .double(2, seconds(durations.sum_ns()))
        .messages(3, bounds)
        .signed(5, SCHEMA.into())
        .double(6, ZERO_THRESHOLD)
        .number(7, zero)
        .messages(12, spans);
    // Differences of neighbours' counts.
    let before = [0].into_iter().chain(buckets.iter().map(|(_, count)| *count));
    let deltas = buckets.iter().zip(before).map(|((_, count), before)| count.wrapping_sub(before));
    deltas.fold(message, |message, delta| message.signed(13, delta.cast_signed()))
}

/// Runs of neighbouring buckets, each by its distance from the one before, and its length.
fn spans(buckets: &[(i32, u64)]) -> Vec<(i32, u64)> {
    let mut spans: Vec<(i32, u64)> = Vec::new();
    let mut next = 0;
    for &(index, _) in buckets {
        match spans.last_mut() {
            Some((_, length)) if index == next => *length += 1,
            _ => spans.push((index - next, 1)),
        }
        next = index + 1;
    }
    spans
}
