//! The script for continuous integration, and the files of two systems that call it: an action for the one, a template for the
//! other. `.ci/gate` runs it in a fresh clone.

use std::path::Path;
use std::process::Command;

const SCRIPT: &str = "docs/ci/gate.sh";

/// Variables that it takes besides BASE and CACHE.
const VARIABLES: [&str; 7] =
    ["DRIVER", "MODULE", "BUILD", "HANDLERS", "RULES", "KERNEL", "PROFILER"];

/// The files that call it.
const CALLERS: [&str; 2] = ["action.yml", "docs/ci/gitlab.yml"];

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
fn both_systems_call_the_script_and_nothing_else_of_weight() {
    const GIT: &str =
        "apt-get update && apt-get install -y --no-install-recommends ca-certificates git";
    let call = format!("bash \"$PROFILER/{SCRIPT}\"");
    let script = file(SCRIPT);
    for path in CALLERS {
        assert_eq!(commands(&lines(path)), [&call], "{path}");
        let lines = lines(path);
        // No second way to run something: what `script: |` holds is the comment.
        let blocks = ["path: |", "script: |"];
        let is_more = |line: &String| line.ends_with('|') && !blocks.contains(&line.as_str());
        assert!(!lines.iter().any(is_more), "{path}");
        assert!(!lines.iter().any(|line| line.contains("before_script")), "{path}");
        assert!(lines.iter().any(|line| line.starts_with("BASE: $")), "{path}");
        assert!(
            lines.iter().any(|line| line == "- target/ci/gate.*" || line == "target/ci/gate.*")
        );
        let cached = lines.iter().filter(|line| line.ends_with("target/ci/cache")).count();
        assert!(cached > 0 && script.contains("CACHE=${CACHE:-target/ci/cache}"), "{path}");
        // Each variable is an input of the action.
        for variable in VARIABLES.iter().filter(|_| path == "action.yml") {
            assert!(lines.iter().any(|line| line.starts_with(&format!("{variable}: ${{{{"))));
        }
    }
    let workflow = lines("docs/ci/github.yml");
    assert_eq!(commands(&workflow), [GIT]);
    assert!(workflow.iter().any(|line| line == "- uses: ./"), "the action of this repository");
}

#[test]
fn the_script_says_which_variables_it_takes() {
    let script = file(SCRIPT);
    for variable in VARIABLES.iter().chain(&["BASE", "CACHE"]) {
        let described = format!("#   {variable} ");
        assert!(script.lines().any(|line| line.starts_with(&described)), "{variable}");
        assert!(script.contains(&format!("\n{variable}=${{{variable}:")), "{variable}");
    }
    let taken = script.lines().filter(|line| {
        line.split_once("=${").is_some_and(|(name, value)| {
            value.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'))
        })
    });
    assert_eq!(taken.count(), VARIABLES.len() + 2);
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
