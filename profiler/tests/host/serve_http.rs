//! The daemon's HTTP server, asked by clients of all manners.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use profiler::serve::expose::{CONNECTIONS, Format, metrics, serve};
use profiler::serve::state::State;
use profiler_recording::{Recording, Series};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::common::{handler, measure};
use crate::program::{PATIENCE, profiler};
use crate::serve_state::{build, state};

/// A server; it ends with this.
pub(crate) struct Server {
    pub(crate) at: SocketAddr,
    pub(crate) state: watch::Sender<Arc<State>>,
    _runtime: Runtime,
}

impl Server {
    pub(crate) fn start(state: State) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let at = listener.local_addr().unwrap();
        let (sender, receiver) = watch::channel(Arc::new(state));
        runtime.spawn(serve(listener, receiver));
        Self { at, state: sender, _runtime: runtime }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// All that comes back for these bytes.
    fn say(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // The server may close before it has read all.
        let _ = stream.write_all(bytes);
        rest(&mut stream)
    }

    fn ask(&self, request: &str) -> Answer {
        let bytes = self.say(format!("{request}\r\nHost: x\r\n\r\n").as_bytes());
        Answer::parse(&bytes)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1"))
    }
}

fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => bytes,
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let at = bytes
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap_or_else(|| panic!("{bytes:?}"));
        let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head, body: bytes[at + 4..].to_vec() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

#[test]
fn each_format_is_served_under_its_type() {
    let server = Server::start(state());
    for (accept, format) in [
        ("", Format::Text),
        (
            "Accept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited\r\n",
            Format::Protobuf,
        ),
    ] {
        let request = format!("GET /metrics?x HTTP/1.1\r\n{accept}Host: x\r\n\r\n");
        let answer = Answer::parse(&server.say(request.as_bytes()));
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some(format.content_type()));
        assert!(answer.body == metrics(&state(), format), "{}", answer.text());
    }
    let mut later = state();
    later.own.shed = 77;
    server.state.send_replace(Arc::new(later.clone()));
    assert!(server.get("/metrics").body == metrics(&later, Format::Text), "the latest state");
}

#[test]
fn other_pages_and_methods() {
    let server = Server::start(state());
    assert!(server.get("/").text().contains("/metrics"));
    assert_eq!(server.get("/metric").status, 404);
    let head = server.ask("HEAD /metrics HTTP/1.1");
    assert_eq!((head.status, head.body.len()), (200, 0));
    let length = metrics(&state(), Format::Text).len().to_string();
    assert_eq!(head.header("content-length"), Some(length.as_str()));
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"] {
        let refused = server.ask(&format!("{method} /metrics HTTP/1.1"));
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")), "{method}");
    }
    let ready = server.get("/readyz");
    assert_eq!(
        (ready.status, ready.text().as_str()),
        (200, "hids: measuring\nother: refused: no BTF\n")
    );
    let health = server.get("/healthz");
    assert!(health.status == 200 && health.text().starts_with("collected "), "{}", health.text());
}

#[test]
fn recordings_are_by_module_and_build() {
    let server = Server::start(state());
    let one = server.get("/recording?module=hids&build=new");
    assert_eq!(one.header("content-type"), Some("application/json"));
    let recording = Recording::parse(&one.body, Path::new("x")).unwrap();
    assert!(recording == state().builds[1].recording());
    let all = Series::parse(&server.get("/recording").body, Path::new("x")).unwrap();
    assert_eq!(all.runs.len(), 2);
    assert!(all.runs[0] == state().builds[0].recording(), "in order");
    let new = server.get("/recording?build=%6eew");
    assert_eq!(new.body, one.body);
    let unknown = server.get("/recording?module=hids&build=newer");
    assert_eq!(unknown.status, 404);
    assert!(
        unknown.text().ends_with("  module=hids build=old\n  module=hids build=new\n"),
        "{}",
        unknown.text()
    );
    assert_eq!(server.get("/recording?modul=hids").status, 400);
    // A build of which nothing is measured yet has no recording that could be read.
    let mut begun = state();
    begun.builds[1].frame.window_ns = 0;
    server.state.send_replace(Arc::new(begun));
    assert_eq!(server.get("/recording?build=new").status, 404);
    assert!(
        Recording::parse(&server.get("/recording").body, Path::new("x")).is_ok(),
        "the other alone"
    );
}

/// Recordings of two hosts and two builds, by way of the server, through merge, compare and gate.
#[test]
fn recordings_of_many_hosts_are_merged_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut calls = 0;
    for (build_id, times) in [("old", 100), ("new", 300)] {
        let mut files = Vec::new();
        for host in 0..3_u64 {
            let durations: Vec<u64> = (0..2_000).map(|n| times + host + n % 7).collect();
            calls += durations.len();
            let mut of_host = state();
            of_host.builds =
                vec![build("hids", build_id, "2026-11-21T12:30:00Z", &[measure("h", &durations)])];
            of_host.builds[0].frame.host.boot_id = Some(format!("boot of host {host}"));
            let server = Server::start(of_host);
            let file = path(&format!("{build_id}-{host}.json"));
            std::fs::write(
                &file,
                server.get(&format!("/recording?module=hids&build={build_id}")).body,
            )
            .unwrap();
            files.push(file);
        }
        let sum = path(&format!("{build_id}.json"));
        let mut merge = vec!["merge"];
        merge.extend(files.iter().map(String::as_str));
        let merged = profiler(&[merge.as_slice(), &["-o", &sum]].concat());
        assert!(merged.status.success(), "{merged:?}");
    }
    assert_eq!(calls, 12_000);
    let old = Recording::read(Path::new(&path("old.json"))).unwrap();
    assert_eq!(old.handlers[0].count, 6_000);
    let sum: u64 = (0..3).flat_map(|host| (0..2_000).map(move |n| 100 + host + n % 7)).sum();
    assert_eq!(old.handlers[0].sum_ns, sum);

    let compared = profiler(&[
        "compare",
        &path("old.json"),
        &path("new.json"),
        "--json",
        &path("compare.json"),
    ]);
    assert!(compared.status.success(), "{compared:?}");
    let text = String::from_utf8(compared.stdout).unwrap();
    assert!(text.contains("hids old, 1 run of 3 hosts"), "{text}");
    assert!(text.contains("hids new, 1 run of 3 hosts"), "{text}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path("compare.json")).unwrap()).unwrap();
    assert_eq!(report["parts"][0]["base"]["hosts"], 3);
    let markdown =
        profiler(&["compare", &path("old.json"), &path("new.json"), "--format", "markdown"]);
    let markdown = String::from_utf8(markdown.stdout).unwrap();
    for fact in
        ["- baseline: hids old, 1 run of 3 hosts\n", "- candidate: hids new, 1 run of 3 hosts\n"]
    {
        assert!(markdown.contains(fact), "{markdown}");
    }

    // Hosts, not sums, are what statistics are made of: the same boots are on both sides.
    let sides = |build_id: &str| {
        (0..3).map(|host| path(&format!("{build_id}-{host}.json"))).collect::<Vec<_>>()
    };
    let (base, candidate) = (sides("old"), sides("new"));
    let mut gate = vec!["gate"];
    gate.extend(base.iter().map(String::as_str));
    gate.push("--");
    gate.extend(candidate.iter().map(String::as_str));
    let judged = profiler(&gate);
    assert_eq!(judged.status.code(), Some(13), "read, and too few: {judged:?}");
    let text = String::from_utf8(judged.stdout).unwrap();
    assert!(text.contains("hids old, 3 runs\n"), "nothing is merged: {text}");
}

/// Two sums of machines that are not alike are not compared because both are `various`.
#[test]
fn sums_of_unlike_kernels_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let sum = |name: &str, kernels: [&str; 2]| {
        let number = i64::from(name.as_bytes()[0]);
        let mut merge = profiler_recording::Merge::new(&[profiler_recording::unlike::What::Kernel]);
        for (at, kernel) in kernels.into_iter().enumerate() {
            let mut run =
                crate::serve_state::recording(vec![handler(&measure("h", &[at as u64 + 7]))]);
            run.host.kernel_release = Some(kernel.to_owned());
            run.host.boot_id = Some(format!("{name} {at}"));
            run.started += jiff::SignedDuration::from_secs(number);
            merge.add(run, &format!("{name}-{at}")).unwrap();
        }
        merge.finish().unwrap().write(Path::new(&path(name))).unwrap();
    };
    sum("a.json", ["5.10", "6.1"]);
    sum("b.json", ["6.1", "6.12"]);
    sum("c.json", ["6.1", "5.10"]);
    let refused = profiler(&["compare", &path("a.json"), &path("b.json")]);
    assert_eq!(refused.status.code(), Some(12), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("5.10 and 6.1 ") && said.contains("6.1 and 6.12 "), "{said}");
    assert!(profiler(&["compare", &path("a.json"), &path("c.json")]).status.success());
    assert_eq!(
        profiler(&["merge", &path("a.json"), &path("b.json"), "-o", "-"]).status.code(),
        Some(12)
    );
    assert!(profiler(&["merge", &path("a.json"), &path("c.json"), "-o", "-"]).status.success());
}

#[test]
fn hostile_requests_get_an_answer_or_an_end() {
    let server = Server::start(state());
    let long = |bytes: usize| "x".repeat(bytes);
    let status = |bytes: &[u8]| {
        let answer = server.say(bytes);
        if answer.is_empty() { 0 } else { Answer::parse(&answer).status }
    };
    let get = |path: &str| status(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    assert_eq!(status(format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", long(1 << 20)).as_bytes()), 431);
    assert_eq!(get(&format!("/{}", long(12 << 10))), 404);
    // Longer than the head may be; the rest of it is met by a reset, which may overtake the answer.
    assert!([0, 414, 431].contains(&get(&format!("/{}", long(1 << 20)))));
    let many: String = (0..200).map(|at| format!("h{at}: x\r\n")).collect();
    assert_eq!(status(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()), 431);
    assert_eq!(status(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0, "no HTTP/2");
    assert_eq!(status(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), 400, "no TLS");
    assert_eq!(status(b"GET /metrics\r\n\r\n"), 400);
    assert_eq!(status(b"GET http://[::1 HTTP/1.1\r\n\r\n"), 400);
    assert_eq!(status(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n"), 405);
    let endless = b"GET / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\nHost: x\r\n\r\n";
    assert!([400, 431].contains(&status(endless)));
    assert_eq!(
        status(b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\nHost: x\r\n\r\nxxx"),
        405
    );
    assert_eq!(get("/recording?module=%ff%00&build=%zz"), 404);
    assert_eq!(get("/recording?&&=&==&"), 400);
    assert_eq!(get("/recording?module=hids&module=hids&build=old"), 200);
    assert_eq!(get("/../../etc/passwd"), 404);
    assert_eq!(get("/metrics%00"), 404);
    // Several requests at once have one answer, and the connection ends.
    let answer = server.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(50).as_bytes());
    assert_eq!(answer.windows(8).filter(|part| part == b"HTTP/1.1").count(), 1);
    assert_eq!(server.get("/metrics").status, 200, "it lives");
}

#[test]
fn ten_thousand_connections_are_bounded() {
    let server = Server::start(state());
    // The first take all places, and no connection sends anything.
    let mut idle: Vec<TcpStream> = (0..CONNECTIONS).map(|_| server.connect()).collect();
    for _ in 0..20 {
        let wave: Vec<TcpStream> = (0..500).map(|_| server.connect()).collect();
        for mut stream in wave {
            let _ = stream.shutdown(Shutdown::Write);
            let answer = rest(&mut stream);
            assert!(answer.is_empty(), "{answer:?}");
        }
    }
    for stream in &mut idle {
        let end = rest(stream);
        assert!(end.is_empty(), "{end:?}");
    }
    let body = metrics(&state(), Format::Text);
    for _ in 0..1_000 {
        assert!(server.get("/metrics").body == body);
    }
}

/// One client holds as many silent connections as there are places, and opens each again as soon as it is closed.
#[test]
fn a_scrape_is_answered_beside_a_client_that_takes_all_places() {
    let server = Server::start(state());
    let at = server.at;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let hogs = (0..CONNECTIONS).map(|_| {
            scope.spawn(|| {
                let mut opened = 0;
                while !over.load(Ordering::Relaxed) {
                    let mut stream = TcpStream::connect(at).unwrap();
                    opened += 1;
                    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
                    let _ = stream.read(&mut [0]);
                }
                opened
            })
        });
        let hogs: Vec<_> = hogs.collect();
        let body = metrics(&state(), Format::Text);
        let scrapes: Vec<Vec<u8>> = (0..20)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(100));
                server.say(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            })
            .collect();
        over.store(true, Ordering::Relaxed);
        let opened: u64 = hogs.into_iter().map(|hog| hog.join().unwrap()).sum();
        for (at, answer) in scrapes.iter().enumerate() {
            assert!(answer.ends_with(&body), "scrape {at}: {}", String::from_utf8_lossy(answer));
        }
        assert!(opened > CONNECTIONS as u64, "{opened}: none was closed for a scrape");
    });
}

#[test]
fn a_slow_head_is_cut_off() {
    let server = Server::start(state());
    let mut stream = server.connect();
    let began = Instant::now();
    let mut closed = false;
    while !closed && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(200));
        closed = stream.write_all(b"G").is_err();
    }
    let time = began.elapsed();
    assert!(closed && Duration::from_secs(4) < time, "{time:?}");
}

/// It asks for megabytes and takes none: more than the kernel's buffers hold.
#[test]
fn a_scraper_that_never_reads_is_cut_off() {
    let mut large = state();
    let spread: Vec<u64> = (0..20_000).map(|n| n * 997).collect();
    let handlers: Vec<_> = (0..120).map(|n| measure(&format!("h{n}"), &spread)).collect();
    large.builds = vec![build("hids", "large", "2026-11-21T12:30:00Z", &handlers)];
    let server = Server::start(large);
    let mut stream = server.connect();
    stream.write_all(b"GET /recording HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_secs(35));
    let came = rest(&mut stream).len();
    let whole = server.get("/recording");
    assert!(
        whole.body.len() > 8 << 20 && came < whole.body.len(),
        "{came} of {}",
        whole.body.len()
    );
    assert!(Recording::parse(&whole.body, Path::new("x")).is_ok());
}
