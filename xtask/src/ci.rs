//! The files for continuous integration in docs/ci: their commands are taken out of them and run as they
//! stand, in a fresh clone, with the commit itself as the base.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_yaml_ng::Value;

use crate::paths::Paths;
use crate::process;

/// Their place in the report of the tests, and the boot that runs them.
pub(crate) const PLACE: &str = "ci";

/// What the files call the commit that a change is compared with.
const BASE: &str = "BASE";

/// One file with its commands.
#[derive(Debug, Clone, PartialEq)]
struct Pipeline {
    /// Variables that every command sees.
    variables: Vec<(String, String)>,
    /// Commands, in their order; each is run by a shell of its own unless `one_shell`.
    commands: Vec<String>,
    /// Whether a variable that one command sets is there in the next.
    one_shell: bool,
}

/// What takes the commands out of a file.
type Parse = fn(&Value) -> Result<Pipeline>;

/// The files, with what reads them.
const FILES: [(&str, Parse); 2] = [("github.yml", github), ("gitlab.yml", gitlab)];

/// Runs the commands of the file `name` in `clone`.
pub(crate) fn check(paths: &Paths, clone: &Path, name: &str) -> Result<()> {
    let (_, parse) =
        FILES.iter().find(|(file, _)| *file == name).with_context(|| format!("no file {name}"))?;
    let pipeline = read(paths.root(), name, *parse)?;
    clean(clone)?;
    process::create_dir(&clone.join("target"))?;
    let script = clone.join("target/ci-commands.sh");
    let log = paths.target().join("ci").join(format!("{name}.log"));
    let mut commands = String::from("set -e\n");
    for command in &pipeline.commands {
        if pipeline.one_shell {
            commands.push_str(command);
        } else {
            commands.push_str(&format!("(\n{command}\n)"));
        }
        commands.push('\n');
    }
    process::write(&script, commands)?;
    let mut shell = Command::new("bash");
    shell.arg("-e").arg(&script).current_dir(clone);
    shell.env("GITHUB_STEP_SUMMARY", clone.join("target/summary.md"));
    shell.env("GITHUB_PATH", clone.join("target/path"));
    shell.env_remove("CARGO_TARGET_DIR").env_remove("CARGO");
    for (key, value) in &pipeline.variables {
        let value = if key == BASE { "HEAD" } else { value };
        shell.env(key, value);
    }
    process::run_logged(&mut shell, &log)?;
    let verdict = clone.join("target/ci/gate.json");
    let text = std::fs::read_to_string(&verdict)
        .with_context(|| format!("the commands of {name} left no {}", verdict.display()))?;
    if !text.contains("\"outcome\": \"pass\"") {
        bail!("the commands of {name} ended well, and their gate did not pass");
    }
    Ok(())
}

/// The names of the files.
pub(crate) fn files() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

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

/// A clone of the commit at hand, with the caches that this checkout has.
pub(crate) fn clone(paths: &Paths) -> Result<PathBuf> {
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

/// Leaves of a clone what a fresh one has, and its caches: sources stay untouched, so cargo finds them as
/// they were.
fn clean(clone: &Path) -> Result<()> {
    let git = || {
        let mut git = Command::new("git");
        git.arg("-C").arg(clone);
        git
    };
    // Twice -f: the commands make a work tree of their own below target/.
    let mut clean = git();
    clean.args(["clean", "-ffdxq"]);
    for part in CACHES {
        clean.arg("-e").arg(format!("/target/{part}"));
    }
    process::run(&mut clean)?;
    process::run(git().args(["worktree", "prune"]))
}

fn read(root: &Path, name: &str, parse: Parse) -> Result<Pipeline> {
    let path = root.join("docs/ci").join(name);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let value: Value =
        serde_yaml_ng::from_str(&text).with_context(|| format!("{} is no YAML", path.display()))?;
    parse(&value).with_context(|| format!("{} has another shape", path.display()))
}

fn github(file: &Value) -> Result<Pipeline> {
    let jobs = file["jobs"].as_mapping().context("no `jobs`")?;
    let mut commands = Vec::new();
    for job in jobs.values() {
        for step in job["steps"].as_sequence().context("a job has no `steps`")? {
            match (step["run"].as_str(), step["uses"].as_str()) {
                (Some(run), None) => commands.push(run.to_owned()),
                (None, Some(_)) => {}
                _ => bail!("a step has neither `run` nor `uses`, or both"),
            }
        }
    }
    Ok(Pipeline { variables: variables(&file["env"])?, commands, one_shell: false })
}

fn gitlab(file: &Value) -> Result<Pipeline> {
    let job = &file["handler latency"];
    let mut commands = Vec::new();
    for part in ["before_script", "script"] {
        let lines = job[part].as_sequence().with_context(|| format!("no `{part}`"))?;
        for line in lines {
            commands.push(line.as_str().context("a command is no text")?.to_owned());
        }
    }
    Ok(Pipeline { variables: variables(&job["variables"])?, commands, one_shell: true })
}

fn variables(value: &Value) -> Result<Vec<(String, String)>> {
    let pair = |(key, value): (&Value, &Value)| {
        let text =
            |value: &Value| value.as_str().map(str::to_owned).context("a variable is no text");
        Ok((text(key)?, text(value)?))
    };
    value.as_mapping().context("no variables")?.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline(name: &str) -> Pipeline {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (_, parse) = FILES.iter().find(|(file, _)| *file == name).unwrap();
        read(root, name, *parse).unwrap()
    }

    /// Lines of a pipeline that begin with the program, with continued ones joined.
    fn calls(pipeline: &Pipeline, program: &str) -> Vec<String> {
        let text = pipeline.commands.join("\n").replace("\\\n", " ");
        text.lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .filter(|line| line.starts_with(program))
            .collect()
    }

    #[test]
    fn both_files_measure_alike() {
        let (github, gitlab) = (pipeline("github.yml"), pipeline("gitlab.yml"));
        for program in ["target/ci/bin/profiler lab", "make", "git worktree", "cargo"] {
            assert!(!calls(&github, program).is_empty(), "{program}");
            assert_eq!(calls(&github, program), calls(&gitlab, program));
        }
        let gate = calls(&github, "target/ci/bin/profiler gate");
        assert_eq!(gate.len(), 1);
        // GitLab has no summary of its own that the program could append to.
        assert_eq!(
            calls(&gitlab, "target/ci/bin/profiler gate"),
            [format!("{} --markdown target/ci/gate.md", gate[0])]
        );
        for pipeline in [github, gitlab] {
            assert!(pipeline.variables.iter().any(|(key, _)| key == BASE));
        }
    }

    #[test]
    fn shells_take_the_commands() {
        for name in files() {
            for command in pipeline(name).commands {
                let status = Command::new("bash").args(["-n", "-c", &command]).status().unwrap();
                assert!(status.success(), "{name}: {command}");
            }
        }
    }
}
