//! Pushes all metrics to an OpenTelemetry collector, by OTLP over HTTP.
//!
//! `opentelemetry-otlp` 0.33 exports only what its own SDK has aggregated, so the messages are made here. Numbers of fields are
//! those of `opentelemetry/proto/metrics/v1/metrics.proto` and its neighbours (github.com/open-telemetry/opentelemetry-proto).
//! There is no TLS: push to a collector or agent on the same host, which forwards.

use std::error::Error;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::watch;

use profiler_base::stats::Durations;

#[cfg(feature = "fuzzing")]
pub mod fuzzing;

use super::expose::{
    Family, Kind, Native, Point, SCHEMA, Value, ZERO_THRESHOLD, families, native, seconds,
};
use super::message::Message;
use super::state::{Pushes, State};

/// Where metrics are pushed to when no path is given.
const PATH: &str = "/v1/metrics";
const PORT: u16 = 4318;
pub(super) const PUSH_TIME: Duration = Duration::from_secs(10);
/// Most that is read of an answer.
const ANSWER_BYTES: usize = 64 << 10;
/// `AGGREGATION_TEMPORALITY_CUMULATIVE`
const CUMULATIVE: u64 = 2;

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
        parse_collector(given).map_err(|why| format!("invalid collector URL `{given}`: {why}"))
    }
}

fn parse_collector(given: &str) -> Result<Collector, &'static str> {
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
        let body = request(&latest, host.trim());
        let outcome = tokio::time::timeout(PUSH_TIME, send(&collector, body)).await;
        let outcome = outcome.unwrap_or_else(|_| Err("no answer in 10 s".into()));
        let outcome = outcome.map_err(|why| why.to_string());
        log_outcome(&mut logged, &collector, &outcome);
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
fn log_outcome(logged: &mut Option<String>, to: &Collector, outcome: &Result<Refused, String>) {
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

/// `ExportMetricsServiceResponse`
#[derive(Clone, PartialEq, prost::Message)]
struct Taken {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<Refused>,
}

/// `ExportMetricsPartialSuccess`: the points that were refused of a push that was taken.
#[derive(Clone, PartialEq, prost::Message)]
struct Refused {
    #[prost(int64, tag = "1")]
    rejected_data_points: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

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
    let taken = Taken::decode(body).unwrap_or_default();
    let mut refused = taken.partial_success.unwrap_or_default();
    refused.error_message = refused.error_message.chars().take(200).collect();
    Ok(refused)
}

/// The push of a state, an `ExportMetricsServiceRequest`; `host` is the name of this host.
pub fn request(state: &State, host: &str) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let resource = [
        ("service.name", "profiler"),
        ("service.version", version),
        // One daemon runs on a host.
        ("service.instance.id", host),
        ("host.name", host),
        ("os.type", "linux"),
    ];
    let resource = Message::default().messages(1, resource.map(attribute));
    let scope = Message::default().text(1, "profiler").text(2, version);
    let metrics = families(state).filter_map(|(family, points)| metric(family, &points, state));
    let of_scope = Message::default().message(1, scope).messages(2, metrics);
    let of_resource = Message::default().message(1, resource).message(2, of_scope);
    Message::default().message(1, of_resource).0
}

fn metric(family: &Family, points: &[Point<'_>], state: &State) -> Option<Message> {
    let (name, unit) = family.otlp?;
    let points = points.iter().map(|point| data_point(family, point, state));
    let data = Message::default().messages(1, points);
    let metric = Message::default().text(1, name).text(2, family.help).text(3, unit);
    Some(match family.kind {
        Kind::Gauge => metric.message(5, data),
        // It only grows.
        Kind::Counter => metric.message(7, data.number(2, CUMULATIVE).number(3, 1)),
        Kind::Histogram => metric.message(10, data.number(2, CUMULATIVE)),
    })
}

/// Attributes are those of points rather than of the resource: a daemon has several builds, and storages make labels only
/// of these.
fn data_point(family: &Family, point: &Point<'_>, state: &State) -> Message {
    let names = family.labels.iter().map(|label| match *label {
        "module" => "profiler.module.name",
        "build" => "profiler.module.build_id",
        "handler" => "code.function.name",
        "kind" => "profiler.loss.kind",
        "state" => "profiler.handler.state",
        "phase" => "profiler.module.phase",
        "result" => "profiler.push.result",
        "module_version" => "profiler.module.version",
        "srcversion" => "profiler.module.srcversion",
        "kernel" => "profiler.kernel.release",
        other => other,
    });
    let attributes = names.zip(point.labels.iter().copied()).map(attribute);
    let start = epoch_ns(point.since.unwrap_or(state.since));
    // A clock that was set back must not end a series before it began.
    let times = Message::default().fixed(2, start).fixed(3, epoch_ns(state.at).max(start));
    match point.value {
        Value::Count(count) => times.fixed(6, count).messages(7, attributes),
        Value::Real(value) => times.double(4, value).messages(7, attributes),
        Value::Durations(durations) => histogram(durations, times.messages(1, attributes)),
    }
}

fn epoch_ns(at: jiff::Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or(0)
}

/// Completes the point of a histogram.
fn histogram(durations: &Durations, mut point: Message) -> Message {
    let Native { zero, buckets } = native(durations);
    if let Some(&(first, _)) = buckets.first() {
        let mut counts = Vec::new();
        for (index, count) in buckets {
            counts.resize(usize::try_from(index - first).unwrap_or(0), 0);
            counts.push(count);
        }
        // A bucket's index is that of its lower bound here, and of its upper bound in Prometheus.
        let offset = i64::from(first) - 1;
        point = point.message(8, Message::default().signed(1, offset).numbers(2, &counts));
    }
    if let (Some(min), Some(max)) = (durations.min_ns(), durations.max_ns()) {
        point = point.double(12, seconds(min)).double(13, seconds(max));
    }
    point
        .fixed(4, durations.len())
        .double(5, seconds(durations.sum_ns()))
        .signed(6, SCHEMA.into())
        .fixed(7, zero)
        .double(14, ZERO_THRESHOLD)
}

fn attribute((key, value): (&str, &str)) -> Message {
    Message::default().text(1, key).message(2, Message::default().text(1, value))
}
