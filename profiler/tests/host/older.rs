//! Files that commit 9d342e3 wrote are read as it read them: the tables are its own, apart from words that changed since.

use std::path::{Path, PathBuf};
use std::process::Command;

use profiler::export::verdict::{CompareReport, GateReport};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// What the program prints.
fn stdout(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_profiler"))
        .args(args)
        .current_dir(data(""))
        .env("COLUMNS", "400")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_run_a_series_and_a_merge() {
    insta::assert_snapshot!("older_run", stdout(&["report", "run-9d342e3.json"]));
    insta::assert_snapshot!("older_series", stdout(&["report", "series-9d342e3.json"]));
    insta::assert_snapshot!("older_merge", stdout(&["report", "merged-9d342e3.json"]));
}

/// Nothing of a document is lost or read as something else.
#[test]
fn a_comparison_and_a_gate() {
    let text = std::fs::read_to_string(data("gate-9d342e3.json")).unwrap();
    let gate: GateReport = serde_json::from_str(&text).unwrap();
    let written: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_value(gate).unwrap(), written);
    let text = std::fs::read_to_string(data("compare-9d342e3.json")).unwrap();
    let compare: CompareReport = serde_json::from_str(&text).unwrap();
    let written: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_value(compare).unwrap(), written);
}
