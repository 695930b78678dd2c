//! LTP's runner kirk.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::controller::TestController;
use super::external::ExternalRunner;
use super::test_folder::TestFolder;
use crate::recording::loads::{LoadStatus, TestRuns};

/// The version whose options and report are supported.
const KNOWN: &str = "4.2";
/// What to do without a supported kirk.
pub(super) const REMEDY: &str = "`pip install kirk==4.2.0`, or --ltp-runner direct";
/// A year, in seconds: a limit that no load reaches.
const FOREVER: &str = "31536000";

/// A supported kirk on this machine.
#[derive(Debug, Clone)]
pub(super) struct Kirk {
    pub(super) path: PathBuf,
    pub(super) version: String,
}

impl Kirk {
    /// Looks for kirk in `PATH`, then in LTP's folder; `None` where there is none.
    ///
    /// # Errors
    /// If there is one that is not supported.
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
            return Err(format!("{shown} does not report its version ({last}); {REMEDY}"));
        };
        if version != KNOWN && !version.starts_with(&format!("{KNOWN}.")) {
            return Err(format!(
                "{shown} is kirk {version}, and only {KNOWN} is supported: {REMEDY}"
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
    kirk: &Kirk,
    controller: &TestController,
    folder: &TestFolder,
) -> Result<LoadStatus, String> {
    let root = mirror(controller, folder)?;
    let runner = ExternalRunner::new(
        controller,
        folder,
        &root.join("runtest").join(&controller.spec.suite),
    )?;
    let report = folder.own().join("report.json");
    // kirk runs as root: its files must not be where tests of another user can write.
    let own = folder.own().join("kirk");
    std::fs::create_dir(&own).map_err(|error| format!("{}: {error}", own.display()))?;
    // The agents enforce the timeout; kirk's own is for agents that hang.
    let limit = (controller.spec.time_limit_ns / 1_000_000_000 + 120).to_string();
    let mut argv: Vec<OsString> = vec!["/usr/bin/env".into()];
    for (name, value) in [("LTPROOT", &root), ("TMPDIR", &own)] {
        let mut word = OsString::from(format!("{name}="));
        word.push(value);
        argv.push(word);
    }
    argv.push(kirk.path.clone().into());
    argv.extend(["--no-colors", "--run-suite", &controller.spec.suite].map(OsString::from));
    argv.extend(["--tmp-dir".into(), own.into(), "--json-report".into(), report.clone().into()]);
    argv.extend(["--exec-timeout", &limit, "--suite-timeout", FOREVER].map(OsString::from));
    let workers = controller.spec.workers.to_string();
    argv.extend(["--workers", &workers].map(OsString::from));
    let iterations = controller.spec.iterations.map(|iterations| iterations.to_string());
    match &iterations {
        Some(iterations) => argv.extend(["--suite-iterate", iterations].map(OsString::from)),
        None => argv.extend(["--runtime", FOREVER].map(OsString::from)),
    }
    let outcome = runner.run(argv).await?;
    let status = runner.status("kirk", outcome.status);
    if status == LoadStatus::Completed && controller.all_measured() {
        agrees(&report, &controller.runs())?;
    }
    Ok(status)
}

/// A folder with links to all of LTP but its lists of tests, for a list of our own.
fn mirror(controller: &TestController, folder: &TestFolder) -> Result<PathBuf, String> {
    let root = folder.own().join("root");
    let fail = |error: std::io::Error| format!("{}: {error}", root.display());
    std::fs::create_dir_all(root.join("runtest")).map_err(fail)?;
    for entry in std::fs::read_dir(&controller.root).map_err(fail)? {
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

/// Checks that kirk's report has the same results as ours.
pub(super) fn agrees(report: &Path, runs: &[TestRuns]) -> Result<(), String> {
    let shown = report.display();
    let bytes = std::fs::read(report).map_err(|error| format!("kirk's report {shown}: {error}"))?;
    let report: Report = serde_json::from_slice(&bytes).map_err(|error| {
        format!("kirk's report is not in the format of {KNOWN}: {error}; {REMEDY}")
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
        "kirk's report and the profiler's results differ: {} `{}`: {} times there, {} times here",
        key.0,
        key.1,
        reported.get(key).unwrap_or(&0),
        seen.get(key).unwrap_or(&0),
    ))
}

/// kirk's name of an exit code.
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
    use crate::recording::loads::{LtpTest, ResultCount, TestResult};

    #[test]
    fn the_version_is_found_in_the_output_of_kirk() {
        assert_eq!(version("kirk, 4.2.0\n"), Some("4.2.0"));
        assert_eq!(version("__main__.py, 3\n"), None);
        assert_eq!(version(""), None);
        assert_eq!(version("kirk\n"), None);
    }

    #[test]
    fn a_report_that_differs_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        std::fs::write(
            &path,
            r#"{"results": [{"test_fqn": "a", "status": "pass", "test": {}}], "stats": {}}"#,
        )
        .unwrap();
        let mut runs = TestRuns {
            results: vec![ResultCount {
                result: TestResult::Pass,
                code: Some(0),
                signal: None,
                count: 1,
            }],
            runs: 1,
            ..TestRuns::new(&LtpTest { name: "a".to_owned(), command: "a".to_owned() })
        };
        assert_eq!(agrees(&path, &[runs.clone()]), Ok(()));
        runs.results[0].code = Some(2);
        let error = agrees(&path, &[runs]).unwrap_err();
        assert!(error.contains("a `pass`: 1 times there, 0 times here"), "{error}");
        std::fs::write(&path, "[]").unwrap();
        assert!(agrees(&path, &[]).unwrap_err().contains("not in the format"));
    }
}
