//! Metrics as `io.prometheus.client.MetricFamily`, one after the other, each behind its length.

use prost::Message as _;

use super::durations::{BOUNDS_NS, Native, SCHEMA, ZERO_THRESHOLD, classic, native};
use super::family::{FAMILIES, Family, Point, Seen, Value};
use crate::export::exposition::{Kind, seconds};
use crate::stats::Durations;

/// Messages of `io/prometheus/client/metrics.proto` (github.com/prometheus/client_model, from 0.3 on; fields that are not
/// used here are left out).
#[expect(missing_docs, reason = "the names are the format's")]
pub mod message {
    /// `MetricType` of a family.
    pub mod metric_type {
        pub const COUNTER: i32 = 0;
        pub const GAUGE: i32 = 1;
        pub const HISTOGRAM: i32 = 4;
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct MetricFamily {
        #[prost(string, optional, tag = "1")]
        pub name: Option<String>,
        #[prost(string, optional, tag = "2")]
        pub help: Option<String>,
        /// One of [`metric_type`].
        #[prost(int32, optional, tag = "3")]
        pub r#type: Option<i32>,
        #[prost(message, repeated, tag = "4")]
        pub metric: Vec<Metric>,
        #[prost(string, optional, tag = "5")]
        pub unit: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Metric {
        #[prost(message, repeated, tag = "1")]
        pub label: Vec<LabelPair>,
        #[prost(message, optional, tag = "2")]
        pub gauge: Option<Gauge>,
        #[prost(message, optional, tag = "3")]
        pub counter: Option<Counter>,
        #[prost(message, optional, tag = "7")]
        pub histogram: Option<Histogram>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct LabelPair {
        #[prost(string, optional, tag = "1")]
        pub name: Option<String>,
        #[prost(string, optional, tag = "2")]
        pub value: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Gauge {
        #[prost(double, optional, tag = "1")]
        pub value: Option<f64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Counter {
        #[prost(double, optional, tag = "1")]
        pub value: Option<f64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Histogram {
        #[prost(uint64, optional, tag = "1")]
        pub sample_count: Option<u64>,
        #[prost(double, optional, tag = "2")]
        pub sample_sum: Option<f64>,
        #[prost(message, repeated, tag = "3")]
        pub bucket: Vec<Bucket>,
        #[prost(sint32, optional, tag = "5")]
        pub schema: Option<i32>,
        #[prost(double, optional, tag = "6")]
        pub zero_threshold: Option<f64>,
        #[prost(uint64, optional, tag = "7")]
        pub zero_count: Option<u64>,
        #[prost(message, repeated, tag = "12")]
        pub positive_span: Vec<BucketSpan>,
        #[prost(sint64, repeated, packed = "false", tag = "13")]
        pub positive_delta: Vec<i64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Bucket {
        #[prost(uint64, optional, tag = "1")]
        pub cumulative_count: Option<u64>,
        #[prost(double, optional, tag = "2")]
        pub upper_bound: Option<f64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct BucketSpan {
        #[prost(sint32, optional, tag = "1")]
        pub offset: Option<i32>,
        #[prost(uint32, optional, tag = "2")]
        pub length: Option<u32>,
    }
}

use message::{
    Bucket, BucketSpan, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, metric_type,
};

/// All families that have points.
pub(super) fn render(seen: &Seen<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for family in FAMILIES {
        let points = family.points(seen);
        if points.is_empty() {
            continue;
        }
        let (name, unit) =
            (family.name.to_owned(), family.kind.unit(family.name).map(str::to_owned));
        let family = MetricFamily {
            name: Some(name),
            help: Some(family.help.to_owned()),
            r#type: Some(match family.kind {
                Kind::Counter => metric_type::COUNTER,
                Kind::Histogram => metric_type::HISTOGRAM,
                Kind::Gauge | Kind::Info | Kind::Summary => metric_type::GAUGE,
            }),
            metric: points.iter().map(|point| metric(family, point)).collect(),
            unit,
        };
        bytes.extend(family.encode_length_delimited_to_vec());
    }
    bytes
}

fn metric(family: &Family, point: &Point<'_>) -> Metric {
    let label = |(name, value): (&&str, &&str)| LabelPair {
        name: Some((*name).to_owned()),
        value: Some((*value).to_owned()),
    };
    let label = family.labels.iter().zip(&point.labels).map(label).collect();
    let mut metric = Metric { label, ..Metric::default() };
    let value = match point.value {
        Value::Count(count) => count as f64,
        Value::Real(value) => value,
        Value::Durations(durations) => {
            metric.histogram = Some(histogram(durations));
            return metric;
        }
    };
    if family.kind == Kind::Counter {
        metric.counter = Some(Counter { value: Some(value) });
    } else {
        metric.gauge = Some(Gauge { value: Some(value) });
    }
    metric
}

/// Both classic and native: the scraper takes what it wants.
fn histogram(durations: &Durations) -> Histogram {
    let Native { zero, buckets } = native(durations);
    let (positive_span, positive_delta) = spans(&buckets);
    let bound = |(ns, count): (&u64, u64)| Bucket {
        cumulative_count: Some(count),
        upper_bound: Some(seconds(*ns)),
    };
    Histogram {
        sample_count: Some(durations.len()),
        sample_sum: Some(seconds(durations.sum_ns())),
        bucket: BOUNDS_NS.iter().zip(classic(durations)).map(bound).collect(),
        schema: Some(SCHEMA),
        zero_threshold: Some(ZERO_THRESHOLD),
        zero_count: Some(zero),
        positive_span,
        positive_delta,
    }
}

/// Runs of neighbouring buckets, each by its distance from the one before, and differences of neighbours' counts.
fn spans(buckets: &[(i32, u64)]) -> (Vec<BucketSpan>, Vec<i64>) {
    let (mut spans, mut deltas): (Vec<BucketSpan>, Vec<i64>) = (Vec::new(), Vec::new());
    let (mut next, mut before) = (0, 0_u64);
    for &(index, count) in buckets {
        match spans.last_mut() {
            Some(BucketSpan { length: Some(length), .. }) if index == next => *length += 1,
            _ => spans.push(BucketSpan { offset: Some(index - next), length: Some(1) }),
        }
        deltas.push(count.wrapping_sub(before).cast_signed());
        (next, before) = (index + 1, count);
    }
    (spans, deltas)
}
