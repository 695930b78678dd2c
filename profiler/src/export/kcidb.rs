//! KCIDB's submission (I/O schema 5.3): a test for each figure of each run, below the driver's build and its sources.

use serde_json::{Value, json};

use super::figures::figures;
use super::{Exporter, json::indented};
use crate::recording::Recording;

/// Who submits, where nobody says: KCIDB gives each system a name.
const ORIGIN: &str = "profiler";

/// Characters of a commit's hash, which KCIDB wants whole; any other revision is a comment.
const HASH: usize = 40;

/// A submission. Each figure is a test that is `DONE`, with a number; `profiler gate` says what passes.
#[derive(Debug, Clone, Default)]
pub struct Kcidb {
    /// The submitter's name at KCIDB.
    pub origin: Option<String>,
    /// Revision of the driver's sources.
    pub commit: Option<String>,
}

impl Exporter for Kcidb {
    fn serialize(&self, recording: &Recording) -> Vec<u8> {
        self.serialize_runs(std::slice::from_ref(recording)).unwrap_or_default()
    }

    fn serialize_runs(&self, runs: &[Recording]) -> Option<Vec<u8>> {
        let origin = self.origin.as_deref().unwrap_or(ORIGIN);
        let figures = figures(runs);
        let (mut checkouts, mut builds, mut tests) = (Vec::new(), Vec::new(), Vec::new());
        for (at, run) in runs.iter().enumerate() {
            let build = build_of(run);
            let sources = self.commit.as_deref().unwrap_or(build);
            let (checkout_id, build_id) =
                (format!("{origin}:{sources}"), format!("{origin}:{build}"));
            add(&mut checkouts, self.checkout(&checkout_id, origin));
            let architecture = &run.host.arch;
            add(
                &mut builds,
                json!({ "id": build_id, "origin": origin, "checkout_id": checkout_id, "architecture": architecture }),
            );
            let kernel = run.host.kernel_release.as_deref().unwrap_or("unknown");
            for figure in &figures {
                let Some(value) = figure.values.get(at).copied().flatten() else { continue };
                let path = path(&format!("profiler.{}.{}", figure.handler, figure.statistic));
                tests.push(json!({
                    "id": format!("{origin}:{}-{build}-{at}-{path}", run.started),
                    "origin": origin,
                    "build_id": build_id,
                    "path": path,
                    "status": "DONE",
                    "number": { "value": value, "unit": figure.unit() },
                    "start_time": run.started.to_string(),
                    "duration": run.window_ns as f64 / 1e9,
                    "environment": { "comment": text(&format!("Linux {kernel}, clock {}", run.clock)) },
                }));
            }
        }
        let version = json!({ "major": 5, "minor": 3 });
        let document =
            json!({ "version": version, "checkouts": checkouts, "builds": builds, "tests": tests });
        Some(indented(&document))
    }
}

impl Kcidb {
    fn checkout(&self, id: &str, origin: &str) -> Value {
        let mut checkout = json!({ "id": id, "origin": origin });
        if let Some(commit) = &self.commit {
            let is_hash = |text: &str| {
                let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
                text.len() == HASH && text.chars().all(is_hex)
            };
            let key = if is_hash(commit) { "git_commit_hash" } else { "comment" };
            checkout[key] = text(commit).into();
        }
        checkout
    }
}

fn build_of(run: &Recording) -> &str {
    run.modules.first().and_then(|module| module.build_id.as_deref()).unwrap_or("unknown")
}

fn add(list: &mut Vec<Value>, value: Value) {
    if !list.contains(&value) {
        list.push(value);
    }
}

/// A path of KCIDB's tree of tests: words of letters, digits, `_` and `-`, with dots between them.
fn path(text: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let word = |word: &str| word.replace(|c| !is_allowed(c), "_");
    let words = text.split('.').filter(|word| !word.is_empty());
    words.map(word).collect::<Vec<_>>().join(".")
}

/// Text without the one character that KCIDB refuses.
fn text(text: &str) -> String {
    text.replace('\0', "")
}
