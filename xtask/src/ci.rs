//! The script for continuous integration, `docs/ci/gate.sh`, in a fresh clone of the commit at hand, with that commit itself
//! as the base.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::paths::Paths;
use crate::process;

/// Its place in the report of the tests, and the boot that runs it.
pub(crate) const PLACE: &str = "ci";

/// The script.
pub(crate) const SCRIPT: &str = "docs/ci/gate.sh";

/// Variables that it takes besides BASE: their defaults are run, whatever this environment holds.
const VARIABLES: [&str; 5] = ["DRIVER", "MODULE", "HANDLERS", "LOAD", "PROFILER"];

/// Variables of cargo, which starts this program: a runner has none of them.
const CARGO: [&str; 2] = ["CARGO", "CARGO_TARGET_DIR"];

/// What a runner keeps in its caches: downloads of set-up, and what cargo built of dependencies.
const CACHES: [&str; 8] = [
    "kernels",
    "apt",
    "debug/deps",
    "debug/build",
    "debug/.fingerprint",
    "release/deps",
    "release/build",
    "release/.fingerprint",
];

/// Runs the script in a fresh clone.
///
/// # Errors
/// If it fails, or its gate did not pass.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let clone = clone(paths)?;
    let mut script = Command::new("bash");
    script.arg(SCRIPT).current_dir(&clone).env("BASE", "HEAD");
    // The gate appends to the file that a step of GitHub Actions names.
    script.env("GITHUB_STEP_SUMMARY", clone.join("target/summary.md"));
    for variable in VARIABLES.iter().chain(&CARGO) {
        script.env_remove(variable);
    }
    process::run_logged(&mut script, &paths.target().join("ci/gate.log"))?;
    let verdict = clone.join("target/ci/gate.json");
    let text = std::fs::read_to_string(&verdict)
        .with_context(|| format!("{SCRIPT} left no {}", verdict.display()))?;
    ensure!(
        text.contains("\"outcome\": \"pass\""),
        "{SCRIPT} ended well, and its gate did not pass"
    );
    Ok(())
}

/// A clone of the commit at hand, with the caches that this checkout has.
fn clone(paths: &Paths) -> Result<PathBuf> {
    let clone = paths.target().join("ci/clone");
    process::remove_dir(&clone)?;
    process::create_dir(clone.parent().unwrap_or(Path::new(".")))?;
    process::run(Command::new("git").arg("clone").arg("--quiet").arg(paths.root()).arg(&clone))?;
    for part in CACHES {
        let (from, to) = (paths.target().join(part), clone.join("target").join(part));
        if from.exists() {
            process::create_dir(to.parent().unwrap_or(Path::new(".")))?;
            // Hard links: all of this is large. Nobody writes to kernels; cargo writes to files of the
            // packages at this clone's path alone, which are not among these.
            process::run(Command::new("cp").arg("-al").arg(&from).arg(&to))?;
        }
    }
    Ok(clone)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
