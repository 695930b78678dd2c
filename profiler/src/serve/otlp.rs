//! Pushes all metrics to an OpenTelemetry collector, by OTLP over HTTP.
//!
//! `opentelemetry-otlp` 0.33 exports only what its own SDK has aggregated, so the messages are made here, of the types of
//! the protocol's crate. There is no TLS: push to a collector or agent on the same host, which forwards.

use std::error::Error;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Metric,
    NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, exponential_histogram_data_point::Buckets,
    metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::watch;

#[cfg(feature = "fuzzing")]
pub mod fuzzing;

use super::expose::{
    Family, Kind, Native, Point, SCHEMA, Value, ZERO_THRESHOLD, families, native, seconds,
};
use super::state::{Pushes, State};

/// Where metrics are pushed to when no path is given.
const PATH: &str = "/v1/metrics";
const PORT: u16 = 4318;
/// Time for one push.
pub(super) const PUSH_TIME: Duration = Duration::from_secs(10);
/// Most that is read of an answer.
const ANSWER_BYTES: usize = 64 << 10;

/// A collector: `http://HOST[:4318][/v1/metrics]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    /// Host and port.
    address: String,
    path: String,
}

impl FromStr for Collector {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        parsed(given).map_err(|why| format!("invalid collector URL `{given}`: {why}"))
    }
}

fn parsed(given: &str) -> Result<Collector, &'static str> {
    let uri: Uri = given.parse().map_err(|_| "write http://HOST:PORT")?;
    let authority = match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(authority)) => authority,
        (Some("https"), _) => {
            return Err("there is no TLS here; push to a collector on this host by http");
        }
        _ => return Err("write http://HOST:PORT"),
    };
    if authority.as_str().contains('@') {
        return Err("a name and a password are not sent");
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    Ok(Collector {
        address: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(PORT)),
        path: if path == "/" { PATH } else { path }.to_owned(),
    })
}

/// Pushes the latest `state` each time that `every` has passed, until its sender is dropped; then once more.
///
/// Nothing is queued or retried: metrics are cumulative, so the next push has what a failed one had. Each kind of failure
/// is logged once, until a push is taken.
pub async fn push(
    collector: Collector,
    every: Duration,
    mut state: watch::Receiver<Arc<State>>,
    counts: watch::Sender<Pushes>,
) {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut logged = None;
    loop {
        // Or until the engine ends.
        let ended = tokio::time::timeout(every, state.wait_for(|_| false)).await.is_ok();
        let latest = Arc::clone(&state.borrow());
        let body = request(&latest, host.trim()).encode_to_vec();
        let outcome = tokio::time::timeout(PUSH_TIME, send(&collector, body)).await;
        let outcome = outcome.unwrap_or_else(|_| Err("no answer in 10 s".into()));
        let outcome = outcome.map_err(|why| why.to_string());
        log(&mut logged, &collector, &outcome);
        counts.send_modify(|counts| match &outcome {
            Ok(refused) => {
                counts.accepted += 1;
                let refused = refused.rejected_data_points.max(0).cast_unsigned();
                counts.rejected_points = counts.rejected_points.saturating_add(refused);
            }
            Err(_) => counts.failed += 1,
        });
        if ended {
            return;
        }
    }
}

/// Logs a failure, unless it was `logged` last.
fn log(logged: &mut Option<String>, to: &Collector, outcome: &Result<Refused, String>) {
    let wrong = match outcome {
        Ok(refused) if *refused == Refused::default() => None,
        Ok(Refused { rejected_data_points: ..=0, error_message }) => {
            Some(format!("the collector took all metrics and says: {error_message:?}"))
        }
        Ok(Refused { error_message, .. }) => {
            Some(format!("the collector refused data points: {error_message:?}"))
        }
        Err(why) => Some(format!(
            "cannot push metrics to {}: {why}; the next push has all of them",
            to.address
        )),
    };
    if *logged != wrong {
        match &wrong {
            Some(text) => tracing::warn!("{text}"),
            None => tracing::info!("the collector takes metrics again"),
        }
        *logged = wrong;
    }
}

/// The points that were refused of a push that was taken.
type Refused = ExportMetricsPartialSuccess;

/// Sends one request on a connection of its own.
///
/// # Errors
/// Why it was not taken.
async fn send(
    collector: &Collector,
    body: Vec<u8>,
) -> Result<Refused, Box<dyn Error + Send + Sync>> {
    let Collector { address, path } = collector;
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the sender.
    tokio::spawn(connection);
    let request = Request::post(path)
        .header(HOST, address)
        .header(CONTENT_TYPE, "application/x-protobuf")
        .header(USER_AGENT, concat!("profiler/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(Bytes::from(body)))?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, ANSWER_BYTES).collect().await;
    Ok(judge(head.status, &body.map(|body| body.to_bytes()).unwrap_or_default())?)
}

fn judge(status: StatusCode, body: &[u8]) -> Result<Refused, String> {
    if !status.is_success() {
        return Err(format!("it answers {status}"));
    }
    let answer = ExportMetricsServiceResponse::decode(body).unwrap_or_default();
    let mut refused = answer.partial_success.unwrap_or_default();
    refused.error_message = refused.error_message.chars().take(200).collect();
    Ok(refused)
}

/// The push of a state; `host` is the name of this host.
pub fn request(state: &State, host: &str) -> ExportMetricsServiceRequest {
    let metrics = families(state).filter_map(|(family, points)| metric(family, &points, state));
    let resource = [
        ("service.name", "profiler"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        // One daemon runs on a host.
        ("service.instance.id", host),
        ("host.name", host),
        ("os.type", "linux"),
    ];
    let scope = InstrumentationScope {
        name: "profiler".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource {
                attributes: resource.map(|(key, value)| attribute(key, value)).to_vec(),
                ..Resource::default()
            }),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope),
                metrics: metrics.collect(),
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }],
    }
}

/// Start and time of a point, in nanoseconds since the epoch. A clock that was set back must not end a series before it began.
fn times(point: &Point<'_>, state: &State) -> (u64, u64) {
    let start = epoch_ns(point.since.unwrap_or(state.since));
    (start, epoch_ns(state.at).max(start))
}

fn epoch_ns(at: jiff::Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or(0)
}

fn metric(family: &Family, points: &[Point<'_>], state: &State) -> Option<Metric> {
    let (name, unit) = family.otlp?;
    let cumulative = AggregationTemporality::Cumulative.into();
    let numbers = points.iter().map(|point| number(family, point, state));
    let data = match family.kind {
        Kind::Counter => metric::Data::Sum(Sum {
            data_points: numbers.collect(),
            aggregation_temporality: cumulative,
            is_monotonic: true,
        }),
        Kind::Histogram => metric::Data::ExponentialHistogram(ExponentialHistogram {
            data_points: points
                .iter()
                .filter_map(|point| durations(family, point, state))
                .collect(),
            aggregation_temporality: cumulative,
        }),
        Kind::Gauge => metric::Data::Gauge(Gauge { data_points: numbers.collect() }),
    };
    Some(Metric {
        name: name.to_owned(),
        description: family.help.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    })
}

fn number(family: &Family, point: &Point<'_>, state: &State) -> NumberDataPoint {
    let value = match point.value {
        Value::Count(count) => {
            number_data_point::Value::AsInt(i64::try_from(count).unwrap_or(i64::MAX))
        }
        Value::Real(value) => number_data_point::Value::AsDouble(value),
        Value::Durations(of) => number_data_point::Value::AsDouble(seconds(of.sum_ns())),
    };
    let (start, time_unix_nano) = times(point, state);
    NumberDataPoint {
        attributes: attributes(family, point),
        // A gauge has no start.
        start_time_unix_nano: if family.kind == Kind::Counter { start } else { 0 },
        time_unix_nano,
        value: Some(value),
        ..NumberDataPoint::default()
    }
}

fn durations(
    family: &Family,
    point: &Point<'_>,
    state: &State,
) -> Option<ExponentialHistogramDataPoint> {
    let Value::Durations(durations) = point.value else { return None };
    let Native { zero, buckets } = native(durations);
    let positive = buckets.first().map(|&(first, _)| {
        let mut bucket_counts = Vec::new();
        for &(index, count) in &buckets {
            bucket_counts.resize(usize::try_from(index - first).unwrap_or(0), 0);
            bucket_counts.push(count);
        }
        // A bucket's index is that of its lower bound here, and of its upper bound in Prometheus.
        Buckets { offset: first - 1, bucket_counts }
    });
    let (start_time_unix_nano, time_unix_nano) = times(point, state);
    Some(ExponentialHistogramDataPoint {
        attributes: attributes(family, point),
        start_time_unix_nano,
        time_unix_nano,
        count: durations.len(),
        sum: Some(seconds(durations.sum_ns())),
        scale: SCHEMA,
        zero_count: zero,
        positive,
        min: durations.min_ns().map(seconds),
        max: durations.max_ns().map(seconds),
        zero_threshold: ZERO_THRESHOLD,
        ..ExponentialHistogramDataPoint::default()
    })
}

/// Attributes of points rather than of the resource: a daemon has several builds, and storages make labels only of these.
fn attributes(family: &Family, point: &Point<'_>) -> Vec<KeyValue> {
    let names = family.labels.iter().map(|label| match *label {
        "module" => "profiler.module.name",
        "build" => "profiler.module.build_id",
        "handler" => "code.function.name",
        "kind" => "profiler.loss.kind",
        "state" => "profiler.handler.state",
        "phase" => "profiler.module.phase",
        "result" => "profiler.push.result",
        other => other,
    });
    names.zip(&point.labels).map(|(name, value)| attribute(name, value)).collect()
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = any_value::Value::StringValue(value.to_owned());
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}
