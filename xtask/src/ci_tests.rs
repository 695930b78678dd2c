//! The script for continuous integration, and the files of two systems that call it: an action for the one, a template for the
//! other. `.ci/gate` runs it in a fresh clone.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;

const SCRIPT: &str = "docs/ci/gate.sh";

/// Variables that it takes besides BASE and CACHE.
const VARIABLES: [&str; 9] =
    ["CHANGE", "DRIVER", "MODULE", "BUILD", "HANDLERS", "RULES", "RELEASE", "KERNEL", "PROFILER"];

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
    assert!(
        workflow.iter().any(|line| line.starts_with("- uses: ./ #")),
        "the action of this repository"
    );
}

#[test]
fn no_job_has_both_the_changes_code_and_a_token_that_may_write() {
    let parts = |path, second| {
        let text = lines(path).join("\n");
        let (gate, comment) = text.split_once(second).expect(second);
        [gate.to_owned(), comment.to_owned()]
    };
    let [gate, comment] = parts("docs/ci/github.yml", "\ncomment:\n");
    assert!(gate.contains("permissions: {}") && !gate.contains("write"), "{gate}");
    assert!(gate.contains("persist-credentials: false"), "{gate}");
    assert!(comment.contains("pull-requests: write"), "{comment}");
    assert!(comment.contains("user.login === 'github-actions[bot]'"), "whose comment it changes");
    for what in ["actions/checkout", "uses: ./", "run:", "/profiler"] {
        assert!(!comment.contains(what), "{what}: {comment}");
    }
    assert!(!file("action.yml").contains("github.token"));
    let [gate, comment] = parts("docs/ci/gitlab.yml", "\nhandler latency comment:\n");
    assert!(!gate.contains("TOKEN"), "{gate}");
    assert!(gate.contains("key: profiler-merge-request-$CI_MERGE_REQUEST_IID"), "{gate}");
    assert!(comment.contains("$GATE_TOKEN") && comment.contains("GIT_STRATEGY: none"), "{comment}");
    assert!(comment.contains("test ! -L target/ci/gate.md"), "{comment}");
    for what in ["gate.sh", "cache:", "PROFILER"] {
        assert!(!comment.contains(what), "{what}: {comment}");
    }
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
fn without_a_base_the_script_says_so() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut bash = Command::new("bash");
    let without = bash.arg(SCRIPT).env_remove("BASE").current_dir(root).output().unwrap();
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(!without.status.success() && said.contains("BASE: set it to the commit"), "{said}");
}

/// Stand-ins for what the script runs. That of `profiler` logs what it is given.
const STAND_INS: [(&str, &str); 3] = [
    ("apt-get", "#!/bin/sh\necho apt-get \"$@\" >>\"$LOG\"\nexit 100\n"),
    (
        "cargo",
        "#!/bin/sh\ncase $1 in\ninstall) mkdir -p target/ci/bin && cp \"$(command -v profiler)\" target/ci/bin ;;\n\
         *) mkdir -p target/kernels/6.1/usr/src/linux-headers-6.1-amd64 ;;\nesac\n",
    ),
    (
        "profiler",
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do\ncase $1 in\n\
         --cache) echo \"cache $(stat -c '%F %a' \"$2\")\" ;;\n--config) echo \"rules $(cat \"$2\")\" ;;\n\
         --baseline | --candidate) echo \"$1 $(cat \"$2\")\" ;;\n--json) json=$2 ;;\nesac\nshift\ndone >>\"$LOG\"\n\
         [ -n \"$CODE\" ] || printf '{\\n  \"outcome\": \"pass\",\\n}\\n' >\"$json\"\nexit \"${CODE:-0}\"\n",
    ),
];

/// A driver's repository whose checked-out commits the script judges, with profiler's sources in it.
struct Repository {
    folder: tempfile::TempDir,
}

impl Repository {
    fn new() -> Self {
        let this = Self { folder: tempfile::tempdir().unwrap() };
        for (name, text) in STAND_INS {
            this.write(&format!(".git/bin/{name}"), text);
            let program = this.path(".git/bin").join(name);
            std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        this.git(&["init", "--quiet", "--initial-branch=main"]);
        this.write(SCRIPT, &file(SCRIPT));
        this.write("docs/ci/gate.toml", "default limits");
        this.write(".gitignore", "target\n");
        this.commit("testbed/source", "first");
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), text).unwrap();
    }

    fn git(&self, args: &[&str]) -> String {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=x", "-c", "user.email=x@x.example"]).args(args);
        process::stdout(git.current_dir(self.folder.path())).unwrap().trim().to_owned()
    }

    /// Commits everything with a changed file; the commit.
    fn commit(&self, name: &str, text: &str) -> String {
        self.write(name, text);
        self.git(&["add", "--all"]);
        self.git(&["add", "--force", name]);
        self.git(&["commit", "--quiet", "--message", text]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Runs the script: its exit code, what the stand-ins logged, and what the script said.
    fn gate(&self, env: &[(&str, &str)]) -> (Option<i32>, String, String) {
        let mut bash = Command::new("bash");
        for variable in VARIABLES.iter().chain(&["CACHE"]) {
            bash.env_remove(variable);
        }
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", self.path(".git/bin").display());
        let log = self.path(".git/log");
        bash.arg(SCRIPT)
            .env("PATH", path)
            .env("LOG", &log)
            .env("BUILD", "cp source hids_testbed.ko");
        bash.env("GITHUB_OUTPUT", self.path(".git/output")).envs(env.iter().copied());
        let done = bash.current_dir(self.folder.path()).output().unwrap();
        let log = std::fs::read_to_string(log).unwrap_or_default();
        (done.status.code(), log, String::from_utf8_lossy(&done.stderr).into_owned())
    }

    /// The output of the step.
    fn output(&self) -> String {
        std::fs::read_to_string(self.path(".git/output")).unwrap_or_default()
    }
}

#[test]
fn the_script_runs_to_its_end() {
    let repository = Repository::new();
    repository.commit("testbed/source", "second");
    let (code, log, said) = repository.gate(&[("BASE", "HEAD^")]);
    assert_eq!(code, Some(0), "{said}\n{log}");
    assert_eq!(
        log,
        "--baseline first\n--candidate second\nrules default limits\ncache directory 700\n"
    );
    assert_eq!(repository.output(), "outcome=pass\n");
}

#[test]
fn a_gate_that_decides_nothing_leaves_no_verdict_of_others() {
    let repository = Repository::new();
    for name in ["gate.json", "gate.md", "gate.xml", "runs/old.json"] {
        repository.write(&format!("target/ci/{name}"), "{\n  \"outcome\": \"pass\",\n}\n");
    }
    let (code, _, said) = repository.gate(&[("BASE", "HEAD"), ("CODE", "15")]);
    assert_eq!(code, Some(15), "{said}");
    for name in ["gate.json", "gate.md", "gate.xml", "runs"] {
        assert!(!repository.path("target/ci").join(name).exists(), "{name}");
    }
    assert_eq!(repository.output(), "");
    // Nor one that the change brings.
    repository.commit("target/ci/cache/forged.json", "{}");
    let (code, _, said) = repository.gate(&[("BASE", "HEAD^")]);
    assert!(code == Some(1) && said.contains("has target/ci/cache/forged.json, where"), "{said}");
}

#[test]
fn rules_are_those_of_the_base() {
    let repository = Repository::new();
    repository.commit("gate.toml", "strict");
    repository.commit("gate.toml", "loose");
    let absolute = repository.path("gate.toml").display().to_string();
    for rules in ["gate.toml", "./gate.toml", &absolute] {
        let (code, log, said) = repository.gate(&[("BASE", "HEAD^"), ("RULES", rules)]);
        assert!(code == Some(0) && log.contains("rules strict\n"), "{rules}: {said}{log}");
        assert!(!log.contains("loose"), "{log}");
    }
    let (code, _, said) = repository.gate(&[("BASE", "HEAD^^"), ("RULES", "gate.toml")]);
    assert!(code == Some(1) && said.contains("gate.toml comes with the change"), "{said}");
    repository.write(".git/outside.toml", "outside");
    let outside = repository.path(".git/outside.toml").display().to_string();
    let (code, log, said) = repository.gate(&[("BASE", "HEAD"), ("RULES", &outside)]);
    assert!(
        code == Some(0) && log.ends_with("rules outside\ncache directory 700\n"),
        "{said}{log}"
    );
}

#[test]
fn a_change_is_not_blamed_for_what_others_merged_meanwhile() {
    let repository = Repository::new();
    let base = repository.git(&["rev-parse", "HEAD"]);
    repository.git(&["checkout", "--quiet", "-b", "change"]);
    let change = repository.commit("testbed/other", "the change");
    repository.git(&["checkout", "--quiet", "main"]);
    repository.commit("testbed/source", "slower, by others");
    // As systems check a change out: merged to the base as it is now, which the event's base is not.
    repository.git(&["checkout", "--quiet", "--detach"]);
    repository.git(&["merge", "--quiet", "--no-ff", "--no-edit", "change"]);
    let (code, log, said) = repository.gate(&[("BASE", &base), ("CHANGE", &change)]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        log.starts_with("--baseline slower, by others\n--candidate slower, by others\n"),
        "{log}"
    );
    // The change by itself, and a base that went on.
    repository.git(&["checkout", "--quiet", "change"]);
    let (code, log, said) = repository.gate(&[("BASE", "main"), ("CHANGE", &change)]);
    assert_eq!(code, Some(0), "{said}");
    assert!(log.contains("\n--baseline first\n--candidate first\n"), "{log}");
}
