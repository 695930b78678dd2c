//! Pushes by OTLP, to a receiver made of the protocol's own types.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, ExponentialHistogramDataPoint, Metric, metric, number_data_point,
};
use profiler::serve::expose::{FAMILIES, families, native};
use profiler::serve::otlp::{Collector, push, request};
use profiler::serve::state::{Pushes, State};
use prost::Message as _;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::common::measure;
use crate::program::wait_for;
use crate::serve_state::{CONNECT, state, sum};

/// What the receiver answers: status line and body.
type Answers = Box<dyn FnMut(usize) -> (&'static str, Vec<u8>) + Send>;

/// A collector that takes requests one after the other.
struct Receiver {
    at: SocketAddr,
    /// The path of each request with its content type, and what it holds.
    got: Arc<Mutex<Vec<(String, ExportMetricsServiceRequest)>>>,
}

impl Receiver {
    fn start(at: &str, mut answers: Answers) -> Self {
        let listener = TcpListener::bind(at).unwrap();
        let at = listener.local_addr().unwrap();
        let got = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&got);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some((head, body)) = read(&mut stream) else { continue };
                let (status, answer) = {
                    let mut all = all.lock().unwrap();
                    all.push((head, ExportMetricsServiceRequest::decode(&*body).unwrap()));
                    answers(all.len())
                };
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", answer.len());
                let _ = stream.write_all(&[head.as_bytes(), &answer].concat());
            }
        });
        Self { at, got }
    }

    fn len(&self) -> usize {
        self.got.lock().unwrap().len()
    }

    fn last(&self) -> ExportMetricsServiceRequest {
        self.got.lock().unwrap().last().unwrap().1.clone()
    }
}

fn read(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length, mut content) = (String::new(), 0, String::new());
    reader.read_line(&mut head).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let (name, value) = line.trim_end().split_once(": ").unwrap_or(("", ""));
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "content-type" => content = value.to_owned(),
            "" => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((format!("{} {content}", head.trim_end()), body))
}

/// A push under way.
struct Pushing {
    state: watch::Sender<Arc<State>>,
    counts: watch::Receiver<Pushes>,
    task: tokio::task::JoinHandle<()>,
    runtime: Runtime,
}

impl Pushing {
    fn start(to: &str, every: Duration, state: State) -> Self {
        let runtime = Runtime::new().unwrap();
        let (pushes, counts) = watch::channel(Pushes::default());
        let (sender, receiver) = watch::channel(Arc::new(state));
        let task = runtime.spawn(push(to.parse().unwrap(), every, receiver, pushes));
        Self { state: sender, counts, task, runtime }
    }

    /// The engine ends.
    fn end(self) -> Pushes {
        drop(self.state);
        self.runtime.block_on(self.task).unwrap();
        *self.counts.borrow()
    }
}

fn accept_all() -> Answers {
    Box::new(|_| ("200 OK", Vec::new()))
}

fn metrics_of(request: &ExportMetricsServiceRequest) -> &[Metric] {
    let [resource] = &request.resource_metrics[..] else { panic!("one resource") };
    let [scope] = &resource.scope_metrics[..] else { panic!("one scope") };
    &scope.metrics
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let attribute = attributes.iter().find(|attribute| attribute.key == key)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn histograms(request: &ExportMetricsServiceRequest) -> Vec<ExponentialHistogramDataPoint> {
    let mut metrics = metrics_of(request).iter();
    let metric = metrics.find(|metric| metric.name == "profiler.handler.duration").unwrap();
    assert_eq!(metric.unit, "s");
    let Some(metric::Data::ExponentialHistogram(histogram)) = &metric.data else { panic!() };
    assert_eq!(histogram.aggregation_temporality, AggregationTemporality::Cumulative as i32);
    histogram.data_points.clone()
}

#[test]
fn a_collector_gets_every_figure() {
    let receiver = Receiver::start("127.0.0.1:0", accept_all());
    let pushing =
        Pushing::start(&format!("http://{}", receiver.at), Duration::from_millis(20), state());
    wait_for("a push", || receiver.len() > 0);
    pushing.end();
    let head = receiver.got.lock().unwrap()[0].0.clone();
    assert_eq!(head, "POST /v1/metrics HTTP/1.1 application/x-protobuf");
    let got = receiver.last();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let resource = &got.resource_metrics[0].resource.as_ref().unwrap().attributes;
    assert_eq!(text(resource, "service.name"), Some("profiler"));
    assert_eq!(text(resource, "host.name"), Some(host.trim()));

    let points = histograms(&got);
    assert_eq!(points.len(), 3);
    let connect = &points[1];
    let label = |key: &str| text(&connect.attributes, key);
    assert_eq!(label("profiler.module.name"), Some("hids"));
    assert_eq!(label("profiler.module.build_id"), Some("new"));
    assert_eq!(label("code.function.name"), Some("connect_syscall_handler"));
    assert_eq!((connect.count, connect.zero_count, connect.scale), (8, 1, 5));
    assert_eq!(connect.sum, Some(90.002_000_382));
    assert_eq!((connect.min, connect.max), (Some(0.0), Some(90.0)));
    let of = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_nanosecond() as u64;
    // Since the build is measured as it is now, and not since the daemon began.
    assert_eq!(connect.start_time_unix_nano, of("2026-11-21T12:00:00.25Z"));
    let started = |name: &str| -> Vec<u64> {
        let found = metrics_of(&got).iter().filter(|metric| metric.name == name);
        let points = found.flat_map(|metric| match metric.data.as_ref().unwrap() {
            metric::Data::Sum(sum) => &sum.data_points[..],
            other => panic!("{other:?}"),
        });
        points.map(|point| point.start_time_unix_nano).collect()
    };
    let losses = started("profiler.handler.entries");
    assert!(losses.contains(&of("2026-11-21T12:00:00.25Z")), "{losses:?}");
    assert_eq!(started("profiler.drains"), [of("2026-11-21T11:00:00Z")]);
    assert_eq!(connect.time_unix_nano, of("2026-11-21T12:30:00.5Z"));
    // Each bucket is where the native histogram has it; here it has the index of its lower bound.
    let buckets = connect.positive.as_ref().unwrap();
    let found: Vec<(i32, u64)> = (buckets.offset + 1..)
        .zip(buckets.bucket_counts.iter().copied())
        .filter(|(_, count)| *count > 0)
        .collect();
    assert_eq!(found, native(&measure("x", &CONNECT).durations).buckets);
    // By the protocol (base^index, base^(index+1)]: 63 ns.
    let base = 2_f64.powf(1.0 / 32.0);
    assert!(base.powi(buckets.offset) < 63e-9 && 63e-9 <= base.powi(buckets.offset + 1));
    let idle = &points[2];
    assert_eq!(
        (idle.count, idle.sum, idle.min, idle.positive.as_ref()),
        (0, Some(0.0), None, None)
    );

    for family in FAMILIES {
        let Some((name, unit)) = family.otlp else { continue };
        let metric = metrics_of(&got).iter().find(|metric| metric.name == name).expect(name);
        assert_eq!((metric.unit.as_str(), metric.description.as_str()), (unit, family.help));
    }
    let number = |name: &str, kind: Option<&str>| {
        let metric = metrics_of(&got).iter().find(|metric| metric.name == name).expect(name);
        let points = match metric.data.as_ref().unwrap() {
            metric::Data::Sum(sum) => {
                assert!(sum.is_monotonic && sum.aggregation_temporality == 2, "{name}");
                &sum.data_points
            }
            metric::Data::Gauge(gauge) => &gauge.data_points,
            other => panic!("{other:?}"),
        };
        let is_wanted = |attributes: &[KeyValue]| {
            kind.is_none_or(|kind| text(attributes, "profiler.loss.kind") == Some(kind))
                && text(attributes, "profiler.module.build_id").is_none_or(|id| id == "new")
        };
        points.iter().find(|point| is_wanted(&point.attributes)).unwrap().value.unwrap()
    };
    use number_data_point::Value::{AsDouble, AsInt};
    assert_eq!(number("profiler.handler.entries", None), AsInt(15));
    assert_eq!(number("profiler.handler.losses", Some("overrun")), AsInt(4));
    assert_eq!(number("profiler.handler.calls_in_flight", None), AsInt(3));
    assert_eq!(number("process.cpu.time", None), AsDouble(1.5));
    assert_eq!(number("profiler.overhead", None), AsDouble(0.0005));
}

/// The attributes of a metric's points, in order.
fn attributes(metric: &Metric) -> Vec<&[KeyValue]> {
    match metric.data.as_ref().unwrap() {
        metric::Data::Sum(sum) => sum.data_points.iter().map(|of| &of.attributes[..]).collect(),
        metric::Data::Gauge(of) => of.data_points.iter().map(|of| &of.attributes[..]).collect(),
        metric::Data::ExponentialHistogram(of) => {
            of.data_points.iter().map(|of| &of.attributes[..]).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Also of a build that has neither a build id nor a `srcversion`.
#[test]
fn each_label_of_a_scrape_is_an_attribute_of_a_push() {
    let mut state = state();
    state.builds[0].id.clear();
    let request = ExportMetricsServiceRequest::decode(&*request(&state, "h")).unwrap();
    let mut metrics = metrics_of(&request).iter();
    for (family, points) in families(&state).filter(|(family, _)| family.otlp.is_some()) {
        let pushed = attributes(metrics.next().unwrap());
        assert_eq!(pushed.len(), points.len(), "{}", family.name);
        for (point, pushed) in points.iter().zip(pushed) {
            let values: Vec<_> = pushed.iter().map(|of| text(pushed, &of.key).unwrap()).collect();
            assert_eq!(values, point.labels, "{}", family.name);
            assert_eq!(values.len(), family.labels.len(), "{}", family.name);
            assert!(pushed.iter().all(|of| of.key.contains('.')), "{pushed:?}");
        }
    }
    assert_eq!(metrics.next(), None);
}

#[test]
fn a_clock_that_was_set_back_ends_no_series_before_it_began() {
    let mut state = state();
    state.at = "2026-11-20T00:00:00Z".parse().unwrap();
    let request = ExportMetricsServiceRequest::decode(&*request(&state, "h")).unwrap();
    for point in histograms(&request) {
        assert_eq!(point.time_unix_nano, point.start_time_unix_nano);
    }
}

/// The state with this number of calls.
fn calls(count: u64) -> State {
    let mut state = state();
    let mut measured = measure("h", &[]);
    measured.durations.record_n(100, count).unwrap();
    state.builds[1].handlers = vec![sum(&measured)];
    state.builds.remove(0);
    state
}

#[test]
fn a_collector_that_is_down_and_comes_back_has_all_calls() {
    // A port that nobody listens on.
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let pushing = Pushing::start(&format!("http://{at}"), Duration::from_millis(20), calls(10));
    wait_for("failed pushes", || pushing.counts.borrow().failed >= 5);
    assert_eq!(pushing.counts.borrow().accepted, 0);
    for count in 11..1_000 {
        pushing.state.send_replace(Arc::new(calls(count)));
    }
    let receiver = Receiver::start(&at.to_string(), accept_all());
    wait_for("a push", || pushing.counts.borrow().accepted > 0);
    let counts = pushing.end();
    assert!(counts.failed >= 5, "{counts:?}");
    let [point] = &histograms(&receiver.last())[..] else { panic!("one handler") };
    assert_eq!((point.count, point.sum), (999, Some(99_900.0 / 1e9)));
    assert_eq!(receiver.len() as u64, counts.accepted, "nothing was queued while it was down");
}

#[test]
fn the_last_state_is_pushed_when_the_engine_ends() {
    let receiver = Receiver::start("127.0.0.1:0", accept_all());
    let pushing =
        Pushing::start(&format!("http://{}", receiver.at), Duration::from_secs(3_600), calls(1));
    pushing.state.send_replace(Arc::new(calls(2)));
    let counts = pushing.end();
    assert_eq!(counts, Pushes { accepted: 1, ..Pushes::default() });
    assert_eq!(histograms(&receiver.last())[0].count, 2);
}

#[test]
fn refusals_are_counted() {
    let partial = ExportMetricsServiceResponse {
        partial_success: Some(ExportMetricsPartialSuccess {
            rejected_data_points: 3,
            error_message: "too old".to_owned(),
        }),
    };
    let answers: Answers = Box::new(move |number| match number {
        1 => ("503 Service Unavailable", Vec::new()),
        2 => ("429 Too Many Requests", Vec::new()),
        3 => ("400 Bad Request", Vec::new()),
        4 => ("200 OK", partial.encode_to_vec()),
        _ => ("200 OK", b"no protobuf".to_vec()),
    });
    let receiver = Receiver::start("127.0.0.1:0", answers);
    let every = Duration::from_millis(100);
    let pushing = Pushing::start(&format!("http://{}/x?y", receiver.at), every, calls(1));
    wait_for("five pushes", || pushing.counts.borrow().accepted >= 2);
    let counts = pushing.end();
    assert_eq!((counts.failed, counts.rejected_points), (3, 3));
    let got = receiver.got.lock().unwrap();
    assert!(got.iter().all(|(head, _)| head.starts_with("POST /x?y HTTP/1.1 ")));
}

/// What answers nothing, and what is no HTTP at all, fails within the time for a push.
#[test]
fn a_collector_that_hangs_or_babbles_is_a_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pushing = Pushing::start(
        &format!("http://{}", listener.local_addr().unwrap()),
        Duration::from_millis(10),
        calls(1),
    );
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"220 mail ESMTP\r\n").unwrap();
    drop(stream);
    wait_for("a failure", || pushing.counts.borrow().failed >= 1);
    let began = Instant::now();
    let _silent = listener.accept().unwrap();
    wait_for("another", || pushing.counts.borrow().failed >= 2);
    let time = began.elapsed();
    assert!(Duration::from_secs(1) < time, "it does not wait for an answer: {time:?}");
}

#[test]
fn addresses_of_collectors() {
    let parse = |text: &str| text.parse::<Collector>();
    for (short, long) in [
        ("http://localhost", "http://localhost:4318/v1/metrics"),
        ("http://localhost:4318/", "http://localhost:4318/v1/metrics"),
        ("http://[::1]", "http://[::1]:4318/v1/metrics"),
    ] {
        assert_eq!(parse(short).unwrap(), parse(long).unwrap());
    }
    assert_ne!(parse("http://localhost/otlp"), parse("http://localhost"));
    for (bad, why) in [
        ("https://localhost", "no TLS"),
        ("localhost:4318", "http://HOST:PORT"),
        ("http:///x", "http://HOST:PORT"),
        ("http://me:secret@localhost", "password"),
        ("", "http://HOST:PORT"),
        ("http://a b", "http://HOST:PORT"),
    ] {
        let error = parse(bad).unwrap_err();
        assert!(error.contains(why), "{bad}: {error}");
    }
}
