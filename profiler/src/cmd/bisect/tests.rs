use std::fs;
use std::path::PathBuf;

use clap::Parser as _;
use nix::fcntl::{Flock, FlockArg};

use super::*;
use crate::cli::{self, Cli};

/// Commits of the repository.
const COMMITS: usize = 32;
/// The number of the first slower one.
const SLOWER: usize = 19;

const DATE_OF_AUTHOR: &str = "GIT_AUTHOR_DATE";
const DATE_OF_COMMIT: &str = "GIT_COMMITTER_DATE";

/// A repository whose driver is a number: what a call takes.
struct Driver {
    folder: tempfile::TempDir,
    hashes: Vec<String>,
    /// What the gate has measured, and how often it can.
    gate: tempfile::TempDir,
    /// The result cannot be printed.
    disk_is_full: bool,
}

impl Driver {
    /// Commits numbered from 0, of which `broken` do not build.
    fn new(broken: &[usize]) -> Self {
        let [folder, gate] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut driver = Self { folder, hashes: Vec::new(), gate, disk_is_full: false };
        driver.git("init --quiet");
        for number in 0..COMMITS {
            let takes = if number < SLOWER { 400 } else { 460 };
            let broken = if broken.contains(&number) { " broken" } else { "" };
            let file = driver.folder.path().join("source");
            fs::write(file, format!("{takes} {number}{broken}\n")).unwrap();
            driver.git("add source");
            driver.git(&format!("commit --quiet -m change-{number}"));
            driver.hashes.push(driver.git("rev-parse HEAD"));
        }
        driver
    }

    fn git(&self, line: &str) -> String {
        let output = Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@example.org"])
            .args(line.split_whitespace())
            // Where it goes after a commit that is left out depends on the hashes.
            .envs([DATE_OF_AUTHOR, DATE_OF_COMMIT].map(|date| (date, "2026-01-01T00:00:00Z")))
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn args(&self) -> BisectArgs {
        let folder = self.folder.path().to_str().unwrap();
        let build = "--build=! grep broken source && cp source driver.ko";
        let line = ["profiler", "bisect", "--good", &self.hashes[0], "--bad=HEAD", build];
        let line = line.into_iter().chain(["--repository", folder]);
        match Cli::try_parse_from(line).unwrap().command {
            cli::Command::Bisect(args) => args,
            other => panic!("{other:?}"),
        }
    }

    /// Bisects with a gate that compares these numbers, and that fails from the `until`-th on.
    fn run(&self, args: &BisectArgs, until: usize) -> Ended {
        let folder = self.gate.path();
        let gate = r#"
            read -r good number <"$3"; read -r candidate _ <"$5"
            [ "$number" = "$(cat "$1/good")" ] || exit 1
            [ "$(wc -l <"$1/measured")" -lt "$(cat "$1/until")" ] || { echo 'error: the power is off' >&2; exit 3; }
            echo "$candidate" >>"$1/measured"
            echo "$good to $candidate"
            [ "$candidate" -le "$good" ] || exit 10"#;
        fs::write(folder.join("measured"), "").unwrap();
        fs::write(folder.join("until"), until.min(1000).to_string()).unwrap();
        let good = self.hashes.iter().position(|hash| *hash == args.good).unwrap_or(0);
        fs::write(folder.join("good"), good.to_string()).unwrap();
        let gate = ["sh", "-c", gate, "sh", folder.to_str().unwrap()].map(Into::into);
        let (mut said, mut text) = (Vec::new(), String::new());
        let mut print = |result: &str| {
            result.clone_into(&mut text);
            if self.disk_is_full { Err(Failure::new(exit::BAD_OUTPUT, "full")) } else { Ok(()) }
        };
        let say = &mut |line: &str| said.push(line.to_owned());
        let result = run_script(script(args, &gate), say, &mut print);
        Ended { result, said, text }
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join(".git/profiler-bisect")
    }
}

/// How a bisection ended, its progress, and its output.
struct Ended {
    result: Result<(), Failure>,
    said: Vec<String>,
    text: String,
}

impl Ended {
    /// The lines of the output, if there is a result.
    #[track_caller]
    fn lines(&self) -> Vec<&str> {
        assert!(self.result.is_ok(), "{:?}: {:#?}", self.result, self.said);
        self.text.lines().collect()
    }

    #[track_caller]
    fn failure(&self) -> &Failure {
        self.result.as_ref().unwrap_err()
    }
}

#[test]
fn a_planted_commit_is_found_and_one_that_does_not_build_is_left_out() {
    // The first that git looks at.
    let driver = Driver::new(&[15]);
    let ended = driver.run(&driver.args(), usize::MAX);
    let first =
        format!("bisect: {} (change-19) is the first slower commit", &driver.hashes[SLOWER][..12]);
    let [found, words, builds, skipped] = ended.lines()[..] else { panic!("{}", ended.text) };
    assert_eq!((found, words), (first.as_str(), "400 to 460"));
    assert!(skipped.contains(" (change-15): ") && skipped.contains("400 15 broken"), "{skipped}");
    // Both ends, 5 halvings of 31 commits, the one that does not build, and what git takes beside the middle for it.
    let count =
        builds.strip_prefix("bisect: ").and_then(|rest| rest.strip_suffix(" builds; left out:"));
    assert!(count.unwrap().parse::<usize>().unwrap() <= 10, "{builds}");
    assert!(!driver.state().exists());
    assert_eq!(driver.git("worktree list").lines().count(), 1);
    assert_eq!(driver.git("status --porcelain"), "");
}

#[test]
fn it_goes_on_after_a_stop() {
    let driver = Driver::new(&[]);
    let args = driver.args();
    assert_eq!(driver.run(&args, 3).failure().message, "the power is off");
    let other = BisectArgs { build: "true".to_owned(), ..driver.args() };
    let refused = driver.run(&other, usize::MAX);
    assert!(refused.failure().message.contains("--start-over"), "{:?}", refused.result);
    let ended = driver.run(&args, usize::MAX);
    assert!(ended.lines()[0].contains(" (change-19) is the first"), "{}", ended.text);
    assert!(ended.lines()[2].ends_with(" builds"), "{}", ended.text);
    // Neither end is built again: the end of the first half was under way.
    let built = ended.said.iter().filter(|line| line.starts_with("building")).count();
    assert!(built <= 4, "{:#?}", ended.said);
    // Nor is anything left of it for the next one.
    let again = driver.run(&BisectArgs { start_over: true, ..args }, usize::MAX);
    assert_eq!(again.lines()[0], ended.lines()[0]);
}

#[test]
fn commits_that_cannot_be_told_apart_are_all_named() {
    let driver = Driver::new(&[SLOWER - 1, SLOWER - 2]);
    let ended = driver.run(&driver.args(), usize::MAX);
    assert_eq!(ended.failure().code, exit::INCONCLUSIVE);
    assert!(ended.failure().message.contains("one of 3:"), "{:?}", ended.result);
    let possible = ended.text.lines().skip(1).take(3);
    let mut subjects: Vec<&str> =
        possible.filter_map(|commit| Some(commit.trim().split_once(' ')?.1)).collect();
    subjects.sort_unstable();
    assert_eq!(subjects, ["(change-17)", "(change-18)", "(change-19)"], "{}", ended.text);
}

#[test]
fn ends_that_are_none_are_refused() {
    let driver = Driver::new(&[]);
    let refused = |args: BisectArgs| driver.run(&args, usize::MAX).result.unwrap_err();
    let both_fast = BisectArgs { bad: driver.hashes[9].clone(), ..driver.args() };
    let failure = refused(both_fast);
    assert_eq!(failure.code, exit::INCONCLUSIVE);
    assert!(failure.message.contains("not shown to be slower"), "{failure}");
    let from_here = |args| refused(BisectArgs { start_over: true, ..args });
    let reversed =
        BisectArgs { good: "HEAD".to_owned(), bad: "HEAD~3".to_owned(), ..driver.args() };
    assert!(from_here(reversed).message.contains("not an ancestor"));
    let unknown = BisectArgs { good: "--all".to_owned(), ..driver.args() };
    assert!(from_here(unknown).message.contains("has no commit `--all`"));
    let no_module = BisectArgs { build: "true".to_owned(), ..driver.args() };
    let failure = from_here(no_module);
    assert!(failure.message.contains("`true` made no module"), "{failure}");
    let nowhere = BisectArgs { repository: "/proc".into(), ..driver.args() };
    assert!(from_here(nowhere).message.contains("not a git repository"));
}

#[test]
fn two_at_a_time_are_refused() {
    let driver = Driver::new(&[]);
    fs::create_dir(driver.state()).unwrap();
    let lock = fs::File::create(driver.state().join("lock")).unwrap();
    let _open = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    let ended = driver.run(&driver.args(), usize::MAX);
    assert!(ended.failure().message.contains("another bisection"), "{:?}", ended.result);
}

#[test]
fn a_parent_and_its_child_are_decided_by_both_ends() {
    let driver = Driver::new(&[]);
    let [good, bad] = [SLOWER - 1, SLOWER].map(|number| driver.hashes[number].clone());
    let ended = driver.run(&BisectArgs { good, bad, ..driver.args() }, usize::MAX);
    assert!(ended.lines()[0].contains(" (change-19) is the first"), "{}", ended.text);
    assert_eq!(ended.lines()[1..], ["400 to 460", "bisect: 2 builds"], "{:#?}", ended.said);
}

#[test]
fn a_step_that_is_killed_or_a_hook_that_fails_is_no_verdict() {
    let driver = Driver::new(&[]);
    let hook = driver.folder.path().join(".git/hooks/post-checkout");
    fs::write(&hook, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let killed =
        BisectArgs { build: "cp source driver.ko; kill -9 $PPID".to_owned(), ..driver.args() };
    let ended = driver.run(&killed, usize::MAX);
    let failure = ended.failure();
    assert_eq!((failure.code, failure.message.contains("signal")), (exit::CANNOT_MEASURE, true));
    // A build with a repository of its own: git has told the step about the driver's.
    let build = "git init -q dep && git -C dep rev-parse --show-toplevel | grep -q '/dep$' && cp source driver.ko";
    let args = BisectArgs { build: build.to_owned(), start_over: true, ..driver.args() };
    let ended = driver.run(&args, usize::MAX);
    assert!(ended.lines()[0].contains(" (change-19) is the first"), "{}", ended.text);
    assert_eq!(ended.lines().len(), 3, "none is left out: {}", ended.text);
}

#[test]
fn a_result_that_cannot_be_printed_is_kept() {
    let mut driver = Driver::new(&[]);
    driver.disk_is_full = true;
    let failed = driver.run(&driver.args(), usize::MAX);
    assert_eq!((failed.failure().code, failed.failure().message.as_str()), (8, "full"));
    driver.disk_is_full = false;
    let again = driver.run(&driver.args(), 0);
    assert_eq!(again.lines(), failed.text.lines().collect::<Vec<_>>());
    assert!(!driver.state().exists());
}

#[test]
fn what_the_shell_cannot_do_has_a_sentence() {
    let driver = Driver::new(&[]);
    fs::create_dir_all(driver.state().join("lock")).unwrap();
    let ended = driver.run(&driver.args(), usize::MAX);
    assert_eq!(ended.failure().code, exit::BAD_OUTPUT);
    assert!(ended.failure().message.ends_with("profiler-bisect/lock"), "{:?}", ended.result);
    fs::remove_dir(driver.state().join("lock")).unwrap();
    let mut silent = Command::new("sh");
    silent.args(["-c", r"printf 'not \377 UTF-8\nsteps\n' >&2; exit 7"]);
    let mut said = Vec::new();
    let failure = run_script(silent, &mut |line| said.push(line.to_owned()), |_| Ok(()));
    assert_eq!(said, ["not \u{fffd} UTF-8", "steps"]);
    let failure = failure.unwrap_err();
    assert_eq!(failure.code, 7);
    assert!(failure.message.contains("exit status: 7"), "{failure}");
}
