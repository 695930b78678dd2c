//! The HTTP server. It has one request a connection, and each connection costs a bounded time and memory.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;

use profiler_recording::Series;

use super::super::state::{Build, Module, Phase, State};
use super::accept::Format;

/// Connections at a time. For one more, the one that has waited longest for its client gives way.
pub const CONNECTIONS: usize = 64;
/// Time that a connection has for its client even if others wait for a place.
const TURN: Duration = Duration::from_millis(100);
/// Recordings that are being read at a time: they are large. More get 503.
const RECORDINGS: usize = 4;

/// How old the state may be for `/healthz`. The engine sends one after each drain, and at least every minute.
const FRESH: Duration = Duration::from_secs(180);

const HEAD_TIME: Duration = Duration::from_secs(5);
/// Time for a whole connection; the answer to a scraper that never reads is dropped.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
const HEAD_BYTES: usize = 16 << 10;
/// Pause after an error of `accept`, such as too many open files, which would repeat at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; charset=utf-8";
const INDEX: &str = "\
profiler: latencies of the handlers of kernel modules
  /metrics    for Prometheus: text, or protobuf with native histograms
  /recording  JSON for profiler merge, compare and gate; ?module=NAME&build=ID for one build
  /healthz    200 while the daemon collects
  /readyz     200 while a module is measured, or none is refused
";

/// Answers requests with the latest `state`, until the future is dropped.
pub async fn serve(listener: TcpListener, state: watch::Receiver<Arc<State>>) {
    let server = Arc::new(Server::new(state));
    let mut connections = Vec::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        make_room(&mut connections).await;
        let (waiting, seen) = watch::channel(Some((For::Request, Instant::now())));
        let task = tokio::spawn(connection(stream, Arc::clone(&server), waiting));
        connections.push((seen, task.abort_handle()));
    }
}

/// What a connection waits for its client to do. The first gives way first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum For {
    Request,
    Reading,
}

/// Since when it waits for that; `None` while the answer is made.
type Waiting = Option<(For, Instant)>;

/// Waits until there is a place. New connections wait in the kernel's queue meanwhile, in order: a client that connects
/// faster than others keeps none of them out.
async fn make_room(connections: &mut Vec<(watch::Receiver<Waiting>, AbortHandle)>) {
    loop {
        connections.retain(|(_, task)| !task.is_finished());
        if connections.len() < CONNECTIONS {
            return;
        }
        let overdue = connections.iter().filter_map(|(waiting, task)| {
            let (what, since) = (*waiting.borrow())?;
            (since.elapsed() >= TURN).then_some((what, since, task))
        });
        if let Some((_, _, task)) = overdue.min_by_key(|(what, since, _)| (*what, *since)) {
            task.abort();
        }
        tokio::time::sleep(TURN / 20).await;
    }
}

async fn connection(stream: TcpStream, server: Arc<Server>, waiting: watch::Sender<Waiting>) {
    let answer = service_fn(async |request| {
        waiting.send_replace(None);
        let answer = server.answer(&request).await;
        waiting.send_replace(Some((For::Reading, Instant::now())));
        Ok::<_, Infallible>(answer)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), answer);
    // Client errors are not logged.
    let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
}

type Answer = Response<Full<Bytes>>;

struct Server {
    state: watch::Receiver<Arc<State>>,
    /// Held while a body is made: one at a time.
    rendered: tokio::sync::Mutex<Rendered>,
    recordings: Arc<Semaphore>,
}

/// Metrics of one state.
#[derive(Default)]
struct Rendered {
    of: Weak<State>,
    bodies: HashMap<Format, Bytes>,
}

/// A recording; the next reader is let in when this one has it, or is gone.
struct Held(Vec<u8>, #[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Server {
    fn new(state: watch::Receiver<Arc<State>>) -> Self {
        let recordings = Arc::new(Semaphore::new(RECORDINGS));
        Self { state, rendered: tokio::sync::Mutex::default(), recordings }
    }

    async fn answer(&self, request: &Request<Incoming>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD alone\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match request.uri().path() {
            "/" => text(StatusCode::OK, INDEX),
            "/metrics" => {
                let accepted = request.headers().get_all(ACCEPT).iter();
                let accepted: Vec<&str> =
                    accepted.filter_map(|value| value.to_str().ok()).collect();
                self.metrics(Format::of(&accepted.join(","))).await
            }
            "/recording" => self.recording(request.uri().query().unwrap_or_default()).await,
            "/healthz" => healthz(self.state.borrow().made.elapsed()),
            "/readyz" => readyz(&self.state.borrow().modules),
            _ => text(StatusCode::NOT_FOUND, "not found; see / for the list of endpoints\n"),
        }
    }

    /// The metrics of the latest state, made once: requests that come meanwhile wait for it.
    async fn metrics(&self, format: Format) -> Answer {
        let mut rendered = self.rendered.lock().await;
        let state = Arc::clone(&self.state.borrow());
        if !std::ptr::eq(rendered.of.as_ptr(), &raw const *state) {
            *rendered = Rendered { of: Arc::downgrade(&state), bodies: HashMap::new() };
        }
        let body = rendered.bodies.entry(format);
        let body = body.or_insert_with(|| super::metrics(&state, format).into());
        answer(StatusCode::OK, format.content_type(), body.clone())
    }

    async fn recording(&self, query: &str) -> Answer {
        let Ok(permit) = Arc::clone(&self.recordings).try_acquire_owned() else {
            let why = "others read recordings now: try again\n";
            let mut answer = text(StatusCode::SERVICE_UNAVAILABLE, why);
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            return answer;
        };
        let _one_at_a_time = self.rendered.lock().await;
        let state = Arc::clone(&self.state.borrow());
        let runs: Vec<_> = match select(&state, query) {
            Ok(builds) => builds.into_iter().map(Build::recording).collect(),
            Err((status, why)) => return text(status, why),
        };
        let body = match runs.as_slice() {
            [one] => one.to_json(),
            _ => Series::new("", runs).to_json(),
        };
        answer(StatusCode::OK, "application/json", Bytes::from_owner(Held(body, permit)))
    }
}

/// The builds that a query asks for, of those that were measured; else why there are none.
fn select<'a>(state: &'a State, query: &str) -> Result<Vec<&'a Build>, (StatusCode, String)> {
    let (mut module, mut id) = (None, None);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match name.as_ref() {
            "module" => module = Some(value),
            "build" => id = Some(value),
            _ => {
                let why = "the parameters are module and build\n".to_owned();
                return Err((StatusCode::BAD_REQUEST, why));
            }
        }
    }
    // A build without a drain has no recording yet.
    let measured = state.builds.iter().filter(|build| build.frame.window_ns > 0);
    let asked = measured.clone().filter(|build| {
        module.as_ref().is_none_or(|module| *module == build.module)
            && id.as_ref().is_none_or(|id| *id == build.id)
    });
    let builds: Vec<&Build> = asked.collect();
    if builds.is_empty() {
        let known = measured.map(|of| format!("  module={} build={}\n", of.module, of.id));
        let known: String = known.collect();
        let why = format!("no such build was measured; measured are:\n{known}");
        return Err((StatusCode::NOT_FOUND, why));
    }
    Ok(builds)
}

fn healthz(age: Duration) -> Answer {
    let status = if age <= FRESH { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    text(
        status,
        format!("collected {} s ago; more than {} s is too long\n", age.as_secs(), FRESH.as_secs()),
    )
}

/// Ready is a daemon that measures a module, or whose modules are all waited for or released.
fn readyz(modules: &[Module]) -> Answer {
    let lines = modules.iter().map(|Module { name, phase }| match phase {
        Phase::Refused(why) => format!("{name}: refused: {why}\n"),
        phase => format!("{name}: {}\n", phase.as_ref()),
    });
    let is_measured = modules.iter().any(|module| module.phase == Phase::Measuring);
    let is_refused = modules.iter().any(|module| matches!(module.phase, Phase::Refused(_)));
    let is_ready = is_measured || !is_refused;
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    text(status, lines.collect::<String>())
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, TEXT, body.into())
}

fn answer(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use proptest::prelude::*;

    use super::super::super::attachment::tests::attachment;
    use super::super::super::state::Own;
    use super::*;

    fn state(phases: &[Phase]) -> State {
        let at = jiff::Timestamp::UNIX_EPOCH;
        let module = |phase: &Phase| Module { name: "m".to_owned(), phase: phase.clone() };
        let modules = phases.iter().map(module).collect();
        let made = Instant::now();
        State { since: at, at, made, modules, builds: Vec::new(), own: Own::default() }
    }

    async fn body(answer: Answer) -> Bytes {
        answer.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn a_state_is_rendered_once_for_all_who_ask() {
        let (sender, receiver) = watch::channel(Arc::new(state(&[])));
        let server = Arc::new(Server::new(receiver));
        let ask = async |format| body(server.metrics(format).await).await;
        let first = ask(Format::Text).await;
        assert!(first.starts_with(b"# HELP profiler_build_info"), "{first:?}");
        for _ in 0..100 {
            assert_eq!(ask(Format::Text).await.as_ptr(), first.as_ptr());
        }
        let protobuf = ask(Format::Protobuf).await;
        assert_ne!(protobuf.as_ptr(), first.as_ptr());
        assert_eq!(ask(Format::Text).await.as_ptr(), first.as_ptr(), "each format has its own");
        sender.send_replace(Arc::new(state(&[Phase::Waiting])));
        let second = ask(Format::Text).await;
        assert!(second.starts_with(b"# HELP profiler_module_phase"), "{second:?}");
        assert_eq!(server.rendered.lock().await.bodies.len(), 1, "the old ones are gone");
    }

    #[tokio::test]
    async fn few_recordings_are_read_at_a_time() {
        let mut build = attachment("aa", Vec::new()).build;
        build.frame.window_ns = 1;
        let state = State { builds: vec![build], ..state(&[]) };
        let (_sender, receiver) = watch::channel(Arc::new(state));
        let server = Server::new(receiver);
        let mut read = Vec::new();
        for _ in 0..RECORDINGS {
            read.push(server.recording("build=aa").await);
        }
        assert!(read.iter().all(|answer| answer.status() == StatusCode::OK));
        let refused = server.recording("").await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key(RETRY_AFTER));
        let whole = body(read.pop().unwrap()).await;
        assert!(whole.starts_with(b"{") && whole.ends_with(b"}\n"));
        assert_eq!(server.recording("").await.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(whole);
        assert_eq!(server.recording("").await.status(), StatusCode::OK);
    }

    #[test]
    fn health_is_a_matter_of_age() {
        assert_eq!(healthz(FRESH).status(), StatusCode::OK);
        let late = healthz(FRESH + Duration::from_millis(1)).status();
        assert_eq!(late, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn a_daemon_is_ready_unless_all_it_can_do_is_refused() {
        let refused = || Phase::Refused("no BTF".to_owned());
        for (phases, status) in [
            (vec![], 200),
            (vec![Phase::Waiting], 200),
            (vec![Phase::Released, Phase::Waiting], 200),
            (vec![Phase::Measuring, refused()], 200),
            (vec![refused()], 503),
            (vec![Phase::Waiting, refused()], 503),
        ] {
            assert_eq!(readyz(&state(&phases).modules).status().as_u16(), status, "{phases:?}");
        }
    }

    proptest! {
        #[test]
        fn any_query_has_an_answer(query in "\\PC{0,64}", raw in "([a-z%=&+0-9;]|module=|build=){0,20}") {
            for query in [query, raw] {
                let refused = select(&state(&[]), &query).unwrap_err();
                prop_assert!([StatusCode::NOT_FOUND, StatusCode::BAD_REQUEST].contains(&refused.0));
            }
        }
    }
}
