//! The HTTP server. It has one request a connection, and each connection costs a bounded time and memory.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::super::state::{Build, Module, Phase, State};
use super::accept::Format;
use crate::recording::Series;

/// Connections at a time. For one more, the one that has waited longest for its client gives way.
pub const CONNECTIONS: usize = 64;
/// Time that a connection has for its client even if others wait for a place.
const TURN: Duration = Duration::from_millis(100);
/// Recordings that are being read at a time: they are large, and of different builds. More get 503.
const RECORDINGS: usize = 4;
/// How old the state may be for `/healthz`. The engine sends one after each drain, and at least every minute.
pub const FRESH: Duration = Duration::from_secs(180);

/// Time for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Time for a whole connection, also of a scraper that never reads: its answer is dropped.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// Size of a request's head.
const HEAD_BYTES: usize = 16 << 10;
/// After an error of `accept`, such as that no file can be opened: it would come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; charset=utf-8";
const INDEX: &str = "\
profiler: latencies of the handlers of kernel modules
  /metrics    for Prometheus: text, OpenMetrics, or protobuf with native histograms
  /recording  JSON for profiler merge, compare and gate; ?module=NAME&build=ID for one build
  /healthz    200 while the daemon collects
  /readyz     200 while a module is measured, or none is refused
";

/// Answers requests with the latest `state`, until the future is dropped.
///
/// The engine sends a state after each drain, and at least every minute: `/healthz` fails when none has come for [`FRESH`].
pub async fn serve(listener: TcpListener, mut state: watch::Receiver<Arc<State>>) {
    let server = Arc::new(Server::new(state.clone()));
    let mut connections = Connections::default();
    let mut engine_lives = true;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            sent = state.changed(), if engine_lives => {
                engine_lives = sent.is_ok();
                if engine_lives {
                    *lock(&server.came) = Instant::now();
                }
                continue;
            }
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        connections.make_room().await;
        let waiting = Arc::new(Mutex::new(Some((For::Request, Instant::now()))));
        let task = connection(stream, Arc::clone(&server), Arc::clone(&waiting));
        connections.places.push((waiting, connections.tasks.spawn(task)));
    }
}

/// What a connection expects of its client. What is first here gives way first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum For {
    Request,
    Reading,
}

/// Since when it waits for that; `None` while the answer is made.
type Waiting = Arc<Mutex<Option<(For, Instant)>>>;

/// The connections there are; they end with this.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    places: Vec<(Waiting, AbortHandle)>,
}

impl Connections {
    /// Waits until there is a place. Others wait in the kernel's queue meanwhile, in the order in which they came: so a client
    /// that connects faster than others keeps none of them out.
    async fn make_room(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.places.retain(|(_, task)| !task.is_finished());
        while self.tasks.len() >= CONNECTIONS {
            let waiting = self.places.iter().filter_map(|(waiting, task)| {
                let (what, since) = (*lock(waiting))?;
                (since.elapsed() >= TURN).then_some((what, since, task))
            });
            if let Some((_, _, task)) = waiting.min_by_key(|(what, since, _)| (*what, *since)) {
                task.abort();
            }
            let _ = tokio::time::timeout(TURN / 10, self.tasks.join_next()).await;
            self.places.retain(|(_, task)| !task.is_finished());
        }
    }
}

async fn connection(stream: TcpStream, server: Arc<Server>, waiting: Waiting) {
    let answer = service_fn(move |request| {
        let (server, waiting) = (Arc::clone(&server), Arc::clone(&waiting));
        async move {
            *lock(&waiting) = None;
            let answer = server.answer(&request).await;
            *lock(&waiting) = Some((For::Reading, Instant::now()));
            Ok::<_, Infallible>(answer)
        }
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
    /// When the latest state came.
    came: Mutex<Instant>,
    rendered: tokio::sync::Mutex<Rendered>,
    recordings: Arc<Semaphore>,
}

/// A body that lets the next reader in when its own has got it, or is gone.
struct Held(Bytes, #[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Bodies that were made of one state. Of recordings there is one at most: they are large, and seldom asked for.
#[derive(Default)]
struct Rendered {
    of: Weak<State>,
    bodies: Vec<(Body, Bytes)>,
}

/// A body that takes time to make.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Body {
    Metrics(Format),
    /// Of these builds, by index.
    Recording(Vec<usize>),
}

impl Body {
    fn content_type(&self) -> &'static str {
        match self {
            Self::Metrics(format) => format.content_type(),
            Self::Recording(_) => "application/json",
        }
    }

    fn render(&self, state: &State) -> Vec<u8> {
        let builds = match self {
            Self::Metrics(format) => return super::metrics(state, *format),
            Self::Recording(indices) => indices.iter().filter_map(|at| state.builds.get(*at)),
        };
        let runs: Vec<_> = builds.map(Build::recording).collect();
        match runs.as_slice() {
            [one] => one.to_json(),
            _ => Series::new("", runs).to_json(),
        }
    }
}

impl Server {
    fn new(state: watch::Receiver<Arc<State>>) -> Self {
        Self {
            state,
            came: Mutex::new(Instant::now()),
            rendered: tokio::sync::Mutex::default(),
            recordings: Arc::new(Semaphore::new(RECORDINGS)),
        }
    }

    fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.borrow())
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
                self.rendered(Body::Metrics(Format::of(&accepted.join(",")))).await
            }
            "/recording" => self.recording(request.uri().query().unwrap_or_default()).await,
            "/healthz" => healthz(lock(&self.came).elapsed()),
            "/readyz" => readyz(&self.state()),
            _ => text(StatusCode::NOT_FOUND, "not found; see / for the list of endpoints\n"),
        }
    }

    /// The body of the latest state, made once: requests that come meanwhile wait for it.
    async fn rendered(&self, body: Body) -> Answer {
        let mut rendered = self.rendered.lock().await;
        rendered.answer(&self.state(), body)
    }

    async fn recording(&self, query: &str) -> Answer {
        let Ok(permit) = Arc::clone(&self.recordings).try_acquire_owned() else {
            let why = "others read recordings now: try again\n";
            let mut answer = text(StatusCode::SERVICE_UNAVAILABLE, why);
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            return answer;
        };
        let mut rendered = self.rendered.lock().await;
        let state = self.state();
        let answer = match select(&state, query) {
            Ok(indices) => rendered.answer(&state, Body::Recording(indices)),
            Err((status, why)) => return text(status, why),
        };
        let (head, body) = answer.into_parts();
        let Ok(body) = body.collect().await;
        let held = Held(body.to_bytes(), permit);
        Response::from_parts(head, Full::new(Bytes::from_owner(held)))
    }
}

impl Rendered {
    fn answer(&mut self, state: &Arc<State>, body: Body) -> Answer {
        if !std::ptr::eq(self.of.as_ptr(), Arc::as_ptr(state)) {
            (self.of, self.bodies) = (Arc::downgrade(state), Vec::new());
        }
        let content_type = body.content_type();
        if let Some((_, bytes)) = self.bodies.iter().find(|(known, _)| *known == body) {
            return answer(StatusCode::OK, content_type, bytes.clone());
        }
        let bytes = Bytes::from(body.render(state));
        if matches!(body, Body::Recording(_)) {
            self.bodies.retain(|(known, _)| matches!(known, Body::Metrics(_)));
        }
        self.bodies.push((body, bytes.clone()));
        answer(StatusCode::OK, content_type, bytes)
    }
}

/// Places of the builds that a query asks for, of those that were measured.
fn select(state: &State, query: &str) -> Result<Vec<usize>, (StatusCode, String)> {
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
    let measured = || {
        let builds = state.builds.iter().enumerate();
        builds.filter(|(_, build)| build.frame.window_ns > 0)
    };
    let is_asked = |build: &Build| {
        module.as_ref().is_none_or(|module| *module == build.module)
            && id.as_ref().is_none_or(|id| *id == build.id)
    };
    let places: Vec<usize> =
        measured().filter(|(_, build)| is_asked(build)).map(|(place, _)| place).collect();
    if places.is_empty() {
        let mut why = "no such build was measured; measured are:\n".to_owned();
        for (_, Build { module, id, .. }) in measured() {
            let _ = writeln!(why, "  module={module} build={id}");
        }
        return Err((StatusCode::NOT_FOUND, why));
    }
    Ok(places)
}

fn healthz(age: Duration) -> Answer {
    let seconds = age.as_secs();
    if age <= FRESH {
        text(StatusCode::OK, format!("collected {seconds} s ago\n"))
    } else {
        let why = format!("collected {seconds} s ago: more than {} s\n", FRESH.as_secs());
        text(StatusCode::SERVICE_UNAVAILABLE, why)
    }
}

/// Ready is what does all that it can: a module is measured, or all are waited for or released.
fn readyz(state: &State) -> Answer {
    let mut lines = String::new();
    let (mut measured, mut refused) = (false, false);
    for Module { name, phase } in &state.modules {
        let _ = match phase {
            Phase::Refused(why) => writeln!(lines, "{name}: refused: {why}"),
            phase => writeln!(lines, "{name}: {}", phase.name()),
        };
        measured |= *phase == Phase::Measuring;
        refused |= matches!(phase, Phase::Refused(_));
    }
    let is_ready = measured || !refused;
    text(if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, lines)
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

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::attachment::tests::attachment;
    use super::super::super::state::Own;
    use super::*;

    fn state(phases: &[Phase]) -> State {
        let at = jiff::Timestamp::UNIX_EPOCH;
        let module = |phase: &Phase| Module { name: "m".to_owned(), phase: phase.clone() };
        let modules = phases.iter().map(module).collect();
        State { since: at, at, modules, builds: Vec::new(), own: Own::default() }
    }

    async fn body(answer: Answer) -> Bytes {
        answer.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn a_state_is_rendered_once_for_all_who_ask() {
        let (sender, receiver) = watch::channel(Arc::new(state(&[])));
        let server = Arc::new(Server::new(receiver));
        let ask = async |format| body(server.rendered(Body::Metrics(format)).await).await;
        let first = ask(Format::Text).await;
        assert!(first.starts_with(b"# HELP profiler_build_info"), "{first:?}");
        for _ in 0..100 {
            assert_eq!(ask(Format::Text).await.as_ptr(), first.as_ptr());
        }
        let open = ask(Format::OpenMetrics).await;
        assert_ne!(open.as_ptr(), first.as_ptr());
        assert_eq!(ask(Format::Text).await.as_ptr(), first.as_ptr(), "each format has its own");
        sender.send_replace(Arc::new(state(&[Phase::Waiting])));
        let second = ask(Format::Text).await;
        assert!(second.starts_with(b"# HELP profiler_module_phase"), "{second:?}");
        assert_eq!(server.rendered.lock().await.bodies.len(), 1, "the old ones are gone");
    }

    #[tokio::test]
    async fn of_recordings_one_is_kept() {
        let (_sender, receiver) = watch::channel(Arc::new(state(&[])));
        let server = Server::new(receiver);
        for place in 0..5 {
            let answer = server.rendered(Body::Recording(vec![place, place + 1])).await;
            assert_eq!(answer.status(), StatusCode::OK);
            assert_eq!(server.rendered.lock().await.bodies.len(), 1);
        }
    }

    #[tokio::test]
    async fn few_recordings_are_read_at_a_time() {
        let mut attached = attachment("aa", Vec::new());
        let mut build = attached.build(None);
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
            assert_eq!(readyz(&state(&phases)).status().as_u16(), status, "{phases:?}");
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
