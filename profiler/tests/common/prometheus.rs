//! Prometheus itself, of Debian's package.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Until it has scraped, in a VM that is translated beside others.
const PATIENCE: Duration = Duration::from_secs(150);

/// One that scrapes one server; it ends with this.
pub(crate) struct Prometheus {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// Starts `program`, with these `features`, and waits until it has scraped `at` (address and port).
    pub(crate) fn scraping(program: &Path, at: &str, features: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "scrape_configs:\n- job_name: profiler\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['{at}']\n"
        );
        std::fs::write(&config, text).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let child = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .args(features)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let this = Self { child, port, _folder: folder };
        let patience = Instant::now() + PATIENCE;
        while this.query("up == 1").is_none_or(|found| found.is_empty()) {
            assert!(Instant::now() < patience, "no scrape");
            std::thread::sleep(Duration::from_millis(100));
        }
        this
    }

    /// Labels and value of each result; `None` while nobody answers.
    pub(crate) fn query(&self, query: &str) -> Option<Vec<(Value, f64)>> {
        let query: String = form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(stream, "GET /api/v1/query?query={query} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).ok()?;
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
        let results = body["data"]["result"].as_array()?.iter();
        Some(
            results
                .map(|of| (of["metric"].clone(), of["value"][1].as_str().unwrap().parse().unwrap()))
                .collect(),
        )
    }

    /// The value for a handler of a build.
    pub(crate) fn value(&self, query: &str, build: &str, handler: &str) -> f64 {
        let found = self.query(query).unwrap();
        let mut of = found
            .iter()
            .filter(|(labels, _)| labels["handler"] == handler && labels["build"] == build);
        let (_, value) = of.next().unwrap_or_else(|| panic!("{query}: {found:?}"));
        assert!(of.next().is_none(), "{query}: {found:?}");
        *value
    }
}
