//! LTP's runner kirk.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::conduct::Conduct;
use super::external::Outside;
use super::work::WorkFolder;
use super::{LtpLoad, TestRuns};
use crate::load::{LoadFailure, LoadStatus};

/// The versions whose options and report are known.
const KNOWN: &str = "4.2";
/// What to do without a kirk that is known.
pub(super) const REMEDY: &str = "`pip install kirk==4.2.0`, or --ltp-runner direct";
/// A year, in seconds: as long as the load may last.
const FOREVER: &str = "31536000";

/// A kirk that is there and known.
#[derive(Debug, Clone)]
pub(super) struct Kirk {
    pub(super) path: PathBuf,
    pub(super) version: String,
}

impl Kirk {
    /// Looks for kirk in `PATH`, then in LTP's folder; `None` where there is none.
    ///
    /// # Errors
    /// When there is one that cannot be used.
    pub(super) fn find(root: &Path) -> Result<Option<Self>, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain([root.to_owned()]);
        let found = folders.map(|folder| folder.join("kirk")).find(|path| path.is_file());
        found.map(Self::at).transpose()
    }

    fn at(path: PathBuf) -> Result<Self, String> {
        let shown = path.display();
        let output = Command::new(&path)
            .arg("--version")
            .output()
            .map_err(|error| format!("{shown} cannot be executed: {error}; {REMEDY}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some(version) = version(&text).filter(|_| output.status.success()) else {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().or(text.lines().last()).unwrap_or_default().trim();
            return Err(format!("{shown} does not tell its version ({last}); {REMEDY}"));
        };
        if version != KNOWN && !version.starts_with(&format!("{KNOWN}.")) {
            return Err(format!(
                "{shown} is kirk {version}, and {KNOWN} is the one that is known here: {REMEDY}"
            ));
        }
        Ok(Self { version: version.to_owned(), path })
    }
}

/// The version in `kirk, 4.2.0`.
fn version(text: &str) -> Option<&str> {
    let word = text.split_whitespace().last()?;
    (text.contains("kirk") && word.starts_with(|c: char| c.is_ascii_digit())).then_some(word)
}

/// Runs the list by kirk.
pub(super) async fn run(
    load: &LtpLoad,
    kirk: &Kirk,
    conduct: &Conduct,
    work: &WorkFolder,
) -> LoadStatus {
    match try_run(load, kirk, conduct, work).await {
        Ok(status) => status,
        Err(text) => LoadStatus::Failed(LoadFailure::BrokeOff { text }),
    }
}

async fn try_run(
    load: &LtpLoad,
    kirk: &Kirk,
    conduct: &Conduct,
    work: &WorkFolder,
) -> Result<LoadStatus, String> {
    let root = mirror(load, work)?;
    let outside = Outside::new(load, conduct, work, &root.join("runtest").join(&load.spec.suite))?;
    let report = work.own().join("report.json");
    // kirk runs as root: its own files are not where tests of another user write.
    let own = work.own().join("kirk");
    std::fs::create_dir(&own).map_err(|error| format!("{}: {error}", own.display()))?;
    // The agents end a test first; kirk's own limits are for what they cannot.
    let limit = (load.spec.time_limit_ns / 1_000_000_000 + 120).to_string();
    let mut argv: Vec<OsString> = vec!["/usr/bin/env".into()];
    for (name, value) in [("LTPROOT", &root), ("TMPDIR", &own)] {
        let mut word = OsString::from(format!("{name}="));
        word.push(value);
        argv.push(word);
    }
    argv.push(kirk.path.clone().into());
    argv.extend(["--no-colors", "--run-suite", &load.spec.suite].map(OsString::from));
    argv.extend(["--tmp-dir".into(), own.into(), "--json-report".into(), report.clone().into()]);
    argv.extend(["--exec-timeout", &limit, "--suite-timeout", FOREVER].map(OsString::from));
    let workers = load.spec.workers.to_string();
    argv.extend(["--workers", &workers].map(OsString::from));
    let iterations = load.spec.iterations.map(|iterations| iterations.to_string());
    match &iterations {
        Some(iterations) => argv.extend(["--suite-iterate", iterations].map(OsString::from)),
        None => argv.extend(["--runtime", FOREVER].map(OsString::from)),
    }
    let outcome = outside.run(argv).await?;
    let status = outside.status("kirk", outcome.status, false);
    if status == LoadStatus::Completed && conduct.all_measured() {
        agrees(&report, &conduct.runs())?;
    }
    Ok(status)
}

/// A folder that looks like LTP's, but with a list of our own. kirk finds all else where it was.
fn mirror(load: &LtpLoad, work: &WorkFolder) -> Result<PathBuf, String> {
    let root = work.own().join("root");
    let fail = |error: std::io::Error| format!("{}: {error}", root.display());
    std::fs::create_dir_all(root.join("runtest")).map_err(fail)?;
    for entry in std::fs::read_dir(&load.root).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if entry.file_name() != "runtest" {
            symlink(entry.path(), root.join(entry.file_name())).map_err(fail)?;
        }
    }
    Ok(root)
}

#[derive(Deserialize)]
struct Report {
    results: Vec<Reported>,
}

#[derive(Deserialize)]
struct Reported {
    test_fqn: String,
    status: String,
}

/// Whether kirk saw the same tests end the same way.
fn agrees(report: &Path, runs: &[TestRuns]) -> Result<(), String> {
    let shown = report.display();
    let bytes = std::fs::read(report).map_err(|error| format!("kirk's report {shown}: {error}"))?;
    let report: Report = serde_json::from_slice(&bytes).map_err(|error| {
        format!("kirk's report is not what is known of {KNOWN}: {error}; {REMEDY}")
    })?;
    let mut reported: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for result in &report.results {
        *reported.entry((&result.test_fqn, &result.status)).or_default() += 1;
    }
    let mut seen: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for test in runs {
        for count in &test.results {
            *seen.entry((&test.name, status_of(count.code))).or_default() += count.count;
        }
    }
    if reported == seen {
        return Ok(());
    }
    let first = reported.iter().find(|(key, count)| seen.get(*key) != Some(*count));
    let first =
        first.or_else(|| seen.iter().find(|(key, count)| reported.get(*key) != Some(*count)));
    let Some((key, _)) = first else { return Ok(()) };
    Err(format!(
        "kirk's report and the profiler's own account differ: {} `{}`: {} times there, {} times here",
        key.0,
        key.1,
        reported.get(key).unwrap_or(&0),
        seen.get(key).unwrap_or(&0),
    ))
}

/// What kirk calls an exit code.
fn status_of(code: Option<i32>) -> &'static str {
    match code {
        Some(0) => "pass",
        Some(2) => "brok",
        Some(4) => "warn",
        Some(32) => "conf",
        _ => "fail",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_what_kirk_says() {
        assert_eq!(version("kirk, 4.2.0\n"), Some("4.2.0"));
        assert_eq!(version("__main__.py, 3\n"), None);
        assert_eq!(version(""), None);
        assert_eq!(version("kirk\n"), None);
    }

    #[test]
    fn a_report_that_differs_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        std::fs::write(
            &path,
            r#"{"results": [{"test_fqn": "a", "status": "pass", "test": {}}], "stats": {}}"#,
        )
        .unwrap();
        let mut runs = TestRuns {
            results: vec![super::super::ResultCount {
                result: super::super::TestResult::Pass,
                code: Some(0),
                signal: None,
                count: 1,
            }],
            runs: 1,
            ..TestRuns::new(&super::super::LtpTest {
                name: "a".to_owned(),
                command: "a".to_owned(),
            })
        };
        assert_eq!(agrees(&path, &[runs.clone()]), Ok(()));
        runs.results[0].code = Some(2);
        let error = agrees(&path, &[runs]).unwrap_err();
        assert!(error.contains("a `pass`: 1 times there, 0 times here"), "{error}");
        std::fs::write(&path, "[]").unwrap();
        assert!(agrees(&path, &[]).unwrap_err().contains("not what is known"));
    }
}
