//! The script for continuous integration, and the files of two systems that call it. `.ci/gate` runs it in a fresh clone.

use std::path::Path;
use std::process::Command;

const SCRIPT: &str = "docs/ci/gate.sh";

/// Variables that it takes besides BASE.
const VARIABLES: [&str; 4] = ["DRIVER", "MODULE", "HANDLERS", "PROFILER"];

fn file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// The lines of a file without its comments.
fn lines(path: &str) -> Vec<String> {
    let text = file(path);
    let lines = text.lines().map(|line| line.trim().to_owned());
    lines.filter(|line| !line.starts_with('#')).collect()
}

/// Commands of a step or job: `run:` in one file, a list of words after `script:` in the other.
fn commands(lines: &[String]) -> Vec<&str> {
    let from = lines.iter().position(|line| line == "script:");
    let listed = from.map_or(&[][..], |from| &lines[from + 1..]);
    let listed = listed.iter().map_while(|line| line.strip_prefix("- "));
    let run = lines.iter().filter_map(|line| line.split_once("run: ").map(|(_, run)| run));
    run.chain(listed).collect()
}

#[test]
fn both_files_call_the_script_and_nothing_else_of_weight() {
    const GIT: &str =
        "apt-get update && apt-get install -y --no-install-recommends ca-certificates git";
    let call = format!("bash {SCRIPT}");
    assert_eq!(commands(&lines("docs/ci/github.yml")), [GIT, &call]);
    assert_eq!(commands(&lines("docs/ci/gitlab.yml")), [call]);
    for path in ["docs/ci/github.yml", "docs/ci/gitlab.yml"] {
        let lines = lines(path);
        // No second way to run something.
        assert!(!lines.iter().any(|line| line.ends_with('|') && line != "path: |"), "{path}");
        assert!(!lines.iter().any(|line| line.contains("before_script")), "{path}");
        assert!(lines.iter().any(|line| line.starts_with("BASE: $")), "{path}");
        assert!(
            lines.iter().any(|line| line == "- target/ci/gate.*" || line == "target/ci/gate.*")
        );
    }
}

#[test]
fn the_script_says_which_variables_it_takes() {
    let script = file(SCRIPT);
    for variable in VARIABLES.iter().chain(&["BASE"]) {
        let described = format!("#   {variable} ");
        assert!(script.lines().any(|line| line.starts_with(&described)), "{variable}");
        assert!(script.contains(&format!("\n{variable}=${{{variable}:")), "{variable}");
    }
    let taken = script.lines().filter(|line| {
        line.split_once("=${").is_some_and(|(name, value)| {
            value.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'))
        })
    });
    assert_eq!(taken.count(), VARIABLES.len() + 1);
    assert!(script.contains("\nout=target/ci\n"), "where the files look for its artifacts");
}

#[test]
fn a_shell_takes_the_script() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let bash = |script: &mut Command| script.current_dir(root).output().unwrap();
    assert!(bash(Command::new("bash").args(["-n", SCRIPT])).status.success());
    let without = bash(Command::new("bash").arg(SCRIPT).env_remove("BASE"));
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(!without.status.success() && said.contains("BASE: set it to the commit"), "{said}");
}
