//! The unit of the daemon, judged by systemd's own program, which needs no running systemd for it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use profiler::serve::rights::KEPT;
use profiler_base::error::exit;
use serde_json::Value;

/// The highest exposure, in tenths: 0 is none, 100 all.
const MOST: u64 = 30;

fn unit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/systemd/profiler.service")
}

/// The values of a setting, of all its lines.
fn setting(name: &str) -> Vec<String> {
    let text = fs::read_to_string(unit()).unwrap();
    let values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.flat_map(|value| value.split_whitespace().map(str::to_owned)).collect()
}

#[test]
fn the_units_capabilities_are_those_that_the_daemon_keeps() {
    let bounding: BTreeSet<String> = setting("CapabilityBoundingSet").into_iter().collect();
    let kept: BTreeSet<String> = KEPT.iter().map(|kept| kept.name.to_owned()).collect();
    assert_eq!(bounding, kept);
    assert_eq!(setting("AmbientCapabilities"), [""; 0]);
    assert_eq!(setting("NoNewPrivileges"), ["yes"]);
    // What takes a capability that is not among them is done by systemd.
    assert_eq!(setting("LimitMEMLOCK"), ["infinity"]);
    // The daemon filters system calls itself, and its set of calls has these two in no group.
    let calls = setting("SystemCallFilter");
    for call in ["bpf", "perf_event_open", "seccomp"] {
        assert!(calls.iter().any(|allowed| allowed == call), "{call}: {calls:?}");
    }
    // It is not started again for what a start cannot put right.
    let hopeless =
        [exit::USAGE, exit::CANNOT_MEASURE, exit::BAD_INPUT].map(|code| code.to_string());
    assert_eq!(setting("RestartPreventExitStatus"), hopeless);
}

#[test]
#[ignore = "needs systemd-analyze: `cargo xtask test` installs it"]
fn the_unit_exposes_little() {
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", "--json=short", "--no-pager"]);
    let output = analyze.arg(format!("--threshold={MOST}")).arg(unit()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let checks: Vec<Value> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert!(checks.len() > 50, "{text}");
    let number =
        |check: &Value| check["exposure"].as_str().and_then(|text| text.parse::<f64>().ok());
    let mut left: Vec<(f64, &str, &str)> = checks
        .iter()
        .filter_map(|check| {
            let exposure = number(check).filter(|exposure| *exposure > 0.0)?;
            Some((exposure, check["name"].as_str()?, check["description"].as_str()?))
        })
        .collect();
    left.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (exposure, name, why) in &left {
        println!("{exposure} {name}: {why}");
    }
    // It fails above the threshold.
    assert!(output.status.success(), "{output:?}");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/serve-rights.md");
    let docs = fs::read_to_string(docs).unwrap();
    for (_, name, _) in left {
        // A bar would end the cell.
        let row = format!("| `{}` |", name.replace('|', "\\|"));
        let is_there = docs.lines().any(|line| line.starts_with(&row));
        assert!(is_there, "docs/serve-rights.md has no row for {name}");
    }
}

#[test]
#[ignore = "needs systemd-analyze: `cargo xtask test` installs it"]
fn systemd_knows_each_setting_of_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("profiler.service");
    let text = fs::read_to_string(unit()).unwrap();
    fs::write(&copy, text.replace("/usr/bin/profiler", "/bin/true")).unwrap();
    let output = Command::new("systemd-analyze").arg("verify").arg(&copy).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
