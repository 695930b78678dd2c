//! Text that people or other programs write.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};

use profiler::serve::config::Config;
use profiler::serve::control::{Answer, Request};
use profiler::serve::expose::Format;
use profiler_base::error::Failure;
use profiler_load::profile::{LoadProfile, Origin};
use profiler_verdict::Rule;

fn utf8(bytes: &[u8], take: impl FnOnce(&str)) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        take(text);
    }
}

/// A mistake has a place in the text.
fn mistake(text: &str, error: &Failure) {
    let mut parts = error.message.splitn(4, ':').skip(1);
    let mut number = || parts.next().and_then(|part| part.parse::<usize>().ok()).expect("a place");
    let (line, column) = (number(), number());
    assert!(line >= 1 && line <= text.matches('\n').count() + 1 && column >= 1);
}

pub fn load_profile(bytes: &[u8]) {
    utf8(bytes, |text| {
        let origin = Origin::File(PathBuf::from("fuzz.toml"));
        if let Err(error) = LoadProfile::parse(origin, text) {
            mistake(text, &error);
        }
    });
}

pub fn serve_toml(bytes: &[u8]) {
    utf8(bytes, |text| match Config::parse(text, Path::new("serve.toml")) {
        Ok(config) => assert!(config.budget.max_overhead.is_none_or(f64::is_finite)),
        Err(error) => mistake(text, &error),
    });
}

pub fn gate_rules(bytes: &[u8]) {
    utf8(bytes, |text| match Rule::parse(text, Path::new("gate.toml")) {
        Ok(rule) => assert!(rule.alpha > 0.0 && rule.alpha < 1.0),
        Err(error) => mistake(text, &error),
    });
}

/// The `Accept` header of a scrape.
pub fn accept(bytes: &[u8]) {
    utf8(bytes, |text| {
        Format::of(text);
    });
}

/// What is read is read again from what is written.
fn again<T: DeserializeOwned + Serialize + PartialEq + Debug>(text: &str) {
    if let Ok(value) = serde_json::from_str::<T>(text) {
        let written = serde_json::to_string(&value).expect("it is written");
        assert_eq!(serde_json::from_str::<T>(&written).expect("it is read"), value);
    }
}

/// A request to the daemon, and its answer.
pub fn control(bytes: &[u8]) {
    utf8(bytes, |text| {
        again::<Request>(text);
        again::<Result<Answer, Failure>>(text);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_of_control_has_requests_and_answers_that_are_read() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/control");
        let (mut requests, mut answers) = (0, 0);
        for file in std::fs::read_dir(corpus).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let is_request = serde_json::from_str::<Request>(&text).is_ok();
            requests += usize::from(is_request);
            if !is_request {
                answers += 1;
                let answer = serde_json::from_str::<Result<Answer, Failure>>(&text);
                assert!(answer.is_ok(), "{text}: {answer:?}");
            }
        }
        assert!(requests > 0 && answers > 0);
    }
}
