//! Formatting and lints: of Rust, of scripts, of the workflow, and of what the programs depend on.

use std::process::Command;

use anyhow::{Result, bail};

use crate::paths;
use crate::process;
use crate::setup;
use crate::setup::tools::LINTERS;

/// Files that run in other people's CI.
const WORKFLOWS: [&str; 2] = ["action.yml", "docs/ci/github.yml"];

/// Fails on the first file that rustfmt would change, and on any warning of clippy or of the other linters.
pub(crate) fn run() -> Result<()> {
    // `--all-targets` leaves the VM tests out, because they have `test = false`.
    for task in [
        "fmt --all --check",
        "clippy --quiet --locked --profile tested --all-targets -- --deny warnings",
        "clippy --quiet --locked --profile tested --package profiler --test vm -- --deny warnings",
    ] {
        println!("lint: cargo {task}");
        process::run(Command::new("cargo").args(task.split(' ')).current_dir(paths::root()))?;
    }
    setup::ensure(&[setup::LINTERS])?;
    println!("lint: shellcheck");
    process::run(linter("shellcheck").args(scripts()?))?;
    println!("lint: zizmor");
    process::run(linter("zizmor").args(["--offline", "--quiet"]).args(WORKFLOWS))?;
    println!("lint: cargo deny");
    deny()?;
    println!("lint: clean");
    Ok(())
}

fn linter(name: &str) -> Command {
    let mut linter = Command::new(LINTERS.program(name));
    linter.current_dir(paths::root());
    linter
}

/// Scripts are known by their first line, whatever their name.
fn scripts() -> Result<Vec<String>> {
    let mut grep = Command::new("git");
    grep.args(["grep", "--cached", "-I", "--files-with-matches", "--extended-regexp"]);
    grep.args(["^#!.*[/ ](ba|da)?sh( |$)", "--", ":!*.rs", ":!*.md"]).current_dir(paths::root());
    Ok(process::stdout(&mut grep)?.lines().map(str::to_owned).collect())
}

/// By `deny.toml`. The database of advisories is a repository of its own, which not every machine reaches.
fn deny() -> Result<()> {
    for checks in [&["licenses", "bans", "sources"][..], &["advisories"]] {
        let mut deny = linter("cargo-deny");
        deny.args(["--locked", "check", "--hide-inclusion-graph"]).args(checks);
        let done = process::capture(&mut deny)?;
        let said = String::from_utf8_lossy(&done.stderr);
        if said.contains("failed to fetch advisory database") {
            println!("lint: advisories are NOT checked: their database cannot be reached");
        } else if !done.status.success() {
            bail!("`{}` failed: {}\n{said}", process::text(&deny), done.status);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str) -> String {
        process::read(&paths::root().join(path)).unwrap()
    }

    /// What the linter says of a file with this text, and whether it is content.
    fn lint(name: &str, file: &str, text: &str) -> (bool, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(file);
        process::write(&path, text).unwrap();
        let mut linter = linter(name);
        let done = process::capture(linter.arg(&path)).unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
    }

    #[test]
    fn every_script_is_looked_at() {
        let found = scripts().unwrap();
        for script in [".ci/gate", ".ci/run", "docs/ci/gate.sh"] {
            assert!(found.iter().any(|name| name == script), "{script} of {found:?}");
        }
    }

    #[test]
    #[ignore = "needs the linters"]
    fn a_workflow_that_is_not_safe_is_refused() {
        let good = text("docs/ci/github.yml");
        let checkout = good.lines().find(|line| line.contains("actions/checkout@")).unwrap();
        for (what, bad, finding) in [
            (checkout, "      - uses: actions/checkout@v4", "unpinned-uses"),
            ("persist-credentials: false", "clean: true", "artipacked"),
            ("on: pull_request", "on: pull_request_target", "dangerous-triggers"),
        ] {
            assert!(good.contains(what), "{what}");
            let (is_clean, said) = lint("zizmor", "workflow.yml", &good.replace(what, bad));
            assert!(!is_clean && said.contains(finding), "{bad}: {said}");
        }
    }

    #[test]
    #[ignore = "needs the linters"]
    fn a_script_that_does_not_quote_is_refused() {
        let (is_clean, said) = lint("shellcheck", "script", "#!/bin/sh\nrm -rf $1/runs\n");
        assert!(!is_clean && said.contains("SC2086"), "{said}");
    }

    #[test]
    #[ignore = "needs the linters"]
    fn a_dependency_under_another_licence_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("deny.toml");
        process::write(&config, text("deny.toml").replace("\"Zlib\"", "")).unwrap();
        let mut deny = linter("cargo-deny");
        let deny = deny.arg("--config").arg(&config).args(["--locked", "check", "licenses"]);
        let done = process::capture(deny).unwrap();
        assert!(!done.status.success());
        assert!(String::from_utf8_lossy(&done.stderr).contains("foldhash"), "{done:?}");
    }
}
