//! LTP's runner kirk: called with the list of tests, its report read at the end.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::LtpLoad;
use crate::load::command::CommandLoad;
use crate::load::run::Load;
use crate::load::sandbox::{OUTPUT_BYTES, PrivateFolder};
use crate::recording::loads::{LoadFailure, LoadStatus, LtpSpec, TestEnd, TestRun, TestRuns};
use crate::stop::StopSignal;

/// What to do without a usable kirk.
const REMEDY: &str = "`pip install kirk==4.2.0`, or --ltp-runner direct";
/// A year, in seconds: a limit that no load reaches.
const FOREVER: &str = "31536000";

/// A kirk on this machine.
#[derive(Debug, Clone)]
pub(super) struct Kirk {
    path: PathBuf,
    pub(super) version: String,
}

impl Kirk {
    /// Looks for kirk in `PATH`, then in LTP's folder.
    ///
    /// # Errors
    /// If there is none, or it does not report its version.
    pub(super) fn find(root: &Path) -> Result<Self, String> {
        for path in [PathBuf::from("kirk"), root.join("kirk")] {
            let Ok(output) = Command::new(&path).arg("--version").output() else { continue };
            let text = String::from_utf8_lossy(&output.stdout);
            let none = || format!("{} does not report its version; {REMEDY}", path.display());
            let version = version(&text).ok_or_else(none)?.to_owned();
            return Ok(Self { path, version });
        }
        Err(format!("no kirk in PATH or {} that can be executed: {REMEDY}", root.display()))
    }
}

/// The version in `kirk, 4.2.0`.
fn version(text: &str) -> Option<&str> {
    let word = text.split_whitespace().last()?;
    (text.contains("kirk") && word.starts_with(|c: char| c.is_ascii_digit())).then_some(word)
}

/// Runs the list by kirk. Results are those of its report, which it writes when it ends by itself. `left` is then what could not
/// be removed.
pub(super) async fn run(
    kirk: &Kirk,
    load: &LtpLoad,
    stop: StopSignal,
    tests: &mut [TestRuns],
    left: &mut Option<String>,
) -> Result<LoadStatus, LoadFailure> {
    let parent = load.sandbox.parent_folder();
    let own = PrivateFolder::new(&parent, "profiler-load-", &load.profiler);
    let own = own.map_err(|error| LoadFailure::CouldNotStart {
        text: format!("a folder for kirk's report in {}: {error}", parent.display()),
    })?;
    let report = own.path().join("report.json");
    let command = CommandLoad::new(&kirk.path, arguments(&load.spec, own.path(), &report))
        .profiler(load.profiler.clone())
        .sandbox(load.sandbox.clone())
        .for_tests(vec![
            ("LTPROOT".to_owned(), load.root.clone().into()),
            ("LTP_COLORIZE_OUTPUT".to_owned(), "n".into()),
        ]);
    let outcome = Load::run(Box::new(command), stop).await;
    *left = outcome.left;
    if outcome.status != LoadStatus::Completed {
        return Ok(outcome.status);
    }
    for Reported { name, test } in read(&report).map_err(|text| LoadFailure::BrokeOff { text })? {
        if let Some(runs) = tests.iter_mut().find(|runs| runs.name == name) {
            runs.add(test.into());
        }
    }
    let missing = tests.iter().filter(|test| test.runs == 0).map(|test| test.name.as_str());
    let missing: Vec<&str> = missing.collect();
    if missing.is_empty() {
        return Ok(LoadStatus::Completed);
    }
    let text = format!("kirk ended without having run {}", missing.join(", "));
    Err(LoadFailure::BrokeOff { text })
}

fn arguments(spec: &LtpSpec, own: &Path, report: &Path) -> Vec<OsString> {
    let names: Vec<String> = spec.tests.iter().map(|test| regex::escape(&test.name)).collect();
    let pattern = format!("^({})$", names.join("|"));
    let limit = spec.time_limit_ns.div_ceil(1_000_000_000).to_string();
    let workers = spec.workers.to_string();
    let mut argv: Vec<OsString> = Vec::new();
    argv.extend(["--no-colors", "--run-suite", &spec.suite].map(OsString::from));
    argv.extend(["--run-pattern", &pattern, "--workers", &workers].map(OsString::from));
    argv.extend(["--exec-timeout", &limit, "--suite-timeout", FOREVER].map(OsString::from));
    argv.extend(["--tmp-dir".into(), own.into()]);
    argv.extend(["--json-report".into(), report.into()]);
    let rounds = spec.iterations.map(|iterations| iterations.to_string());
    argv.extend(match &rounds {
        Some(rounds) => ["--suite-iterate", rounds].map(OsString::from),
        None => ["--runtime", FOREVER].map(OsString::from),
    });
    argv
}

#[derive(Deserialize)]
struct Report {
    results: Vec<Reported>,
}

/// A run of a test.
#[derive(Deserialize)]
pub(super) struct Reported {
    #[serde(rename = "test_fqn")]
    name: String,
    pub(super) test: Details,
}

#[derive(Deserialize)]
pub(super) struct Details {
    /// Exit codes, of which kirk has one: negative for a signal, -1 for a timeout.
    retval: Vec<String>,
    /// In seconds.
    duration: f64,
    log: String,
}

impl From<Details> for TestRun {
    fn from(Details { retval, duration, log }: Details) -> Self {
        let code = retval.first().and_then(|code| code.parse::<i32>().ok());
        let end = match code {
            Some(-1) => TestEnd::TimedOut,
            Some(code @ ..0) => TestEnd::Signal(code.saturating_neg()),
            // Of the shell that kirk runs a test by.
            Some(code @ 129..=192) => TestEnd::Signal(code - 128),
            Some(code) => TestEnd::Exit(code),
            None => TestEnd::NotStarted("kirk reports no exit code".to_owned()),
        };
        let from = log.len().saturating_sub(OUTPUT_BYTES);
        let output = String::from_utf8_lossy(log.as_bytes().get(from..).unwrap_or_default());
        Self {
            end,
            elapsed: Duration::try_from_secs_f64(duration).unwrap_or_default(),
            hits: None,
            left_running: 0,
            needs_root: false,
            output: output.trim_end().to_owned(),
        }
    }
}

/// The runs in kirk's report.
pub(super) fn read(report: &Path) -> Result<Vec<Reported>, String> {
    let shown = report.display();
    let bytes = std::fs::read(report).map_err(|error| format!("kirk's report {shown}: {error}"))?;
    let report: Report = serde_json::from_slice(&bytes)
        .map_err(|error| format!("kirk's report is not in the format of 4.2: {error}; {REMEDY}"))?;
    Ok(report.results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_the_output_of_kirk() {
        assert_eq!(version("kirk, 4.2.0\n"), Some("4.2.0"));
        assert_eq!(version("__main__.py, 3\n"), None);
        assert_eq!(version(""), None);
        assert_eq!(version("kirk\n"), None);
    }

    #[test]
    fn a_report_has_how_each_run_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let result = |code: &str, duration: f64| {
            let test = serde_json::json!({ "retval": [code], "duration": duration, "log": "é\n" });
            serde_json::json!({ "test_fqn": "a", "status": "pass", "test": test })
        };
        let results =
            [result("32", 0.5), result("139", -1.0), result("-1", 1e300), result("", 0.0)];
        std::fs::write(&path, serde_json::json!({ "results": results }).to_string()).unwrap();
        let runs: Vec<TestRun> =
            read(&path).unwrap().into_iter().map(|run| run.test.into()).collect();
        let ends: Vec<&TestEnd> = runs.iter().map(|run| &run.end).collect();
        assert!(
            matches!(
                ends[..],
                [TestEnd::Exit(32), TestEnd::Signal(11), TestEnd::TimedOut, TestEnd::NotStarted(_)]
            ),
            "{ends:?}"
        );
        assert_eq!(runs[0].elapsed, Duration::from_millis(500));
        assert_eq!((runs[0].output.as_str(), runs[1].elapsed), ("é", Duration::ZERO));
        std::fs::write(&path, "[]").unwrap();
        assert!(read(&path).err().unwrap().contains("not in the format"));
    }
}
