use std::process::Command;

use super::*;

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
}

impl Driver {
    /// Commits numbered from 0, of which `broken` do not build.
    fn new(broken: &[usize]) -> Self {
        let [folder, gate] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut driver = Self { folder, hashes: Vec::new(), gate };
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

    fn options(&self) -> Options {
        Options {
            repository: self.folder.path().to_owned(),
            good: self.hashes[0].clone(),
            bad: "HEAD".to_owned(),
            build: "! grep broken source && cp source driver.ko".to_owned(),
            module: None,
            start_over: false,
            gate: Vec::new(),
        }
    }

    /// Bisects with a gate that compares these numbers, and that fails from the `until`-th on.
    fn run(&self, options: &Options, until: usize) -> (Result<Found, Failure>, Vec<String>) {
        let folder = self.gate.path();
        let script = r#"
            read -r good number <"$3"; read -r candidate _ <"$5"
            [ "$number" = "$(cat "$1/good")" ] || exit 1
            [ "$(wc -l <"$1/measured")" -lt "$(cat "$1/until")" ] || { echo 'error: the power is off' >&2; exit 3; }
            echo "$candidate" >>"$1/measured"
            echo "$good to $candidate"
            [ "$candidate" -le "$good" ] || exit 10"#;
        fs::write(folder.join("measured"), "").unwrap();
        fs::write(folder.join("until"), until.min(1000).to_string()).unwrap();
        let good = self.hashes.iter().position(|hash| *hash == options.good).unwrap_or(0);
        fs::write(folder.join("good"), good.to_string()).unwrap();
        let gate = ["sh", "-c", script, "sh", folder.to_str().unwrap()].map(Into::into).into();
        let mut said = Vec::new();
        let found =
            run(&Options { gate, ..options.clone() }, &mut |line| said.push(line.to_owned()));
        (found, said)
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join(".git/profiler-bisect")
    }
}

#[test]
fn a_planted_commit_is_found_and_one_that_does_not_build_is_left_out() {
    // The first that git looks at.
    let driver = Driver::new(&[15]);
    let (found, said) = driver.run(&driver.options(), usize::MAX);
    let found = found.unwrap();
    assert_eq!(found.first, [format!("{} (change-19)", &driver.hashes[SLOWER][..12])]);
    assert_eq!(found.words, "400 to 460");
    let [(skipped, why)] = &found.skipped[..] else { panic!("{said:#?}") };
    assert!(skipped.ends_with(" (change-15)") && why.contains("400 15 broken"), "{skipped} {why}");
    let text = found.text();
    assert!(text.contains("is the first slower commit\n400 to 460\n"), "{text}");
    // Both ends, 5 halvings of 31 commits, the one that does not build, and what git takes beside the middle for it.
    assert!(found.builds <= 10, "{found:?}");
    assert!(!driver.state().exists());
    assert_eq!(driver.git("worktree list").lines().count(), 1);
    assert_eq!(driver.git("status --porcelain"), "");
}

#[test]
fn it_goes_on_after_a_stop() {
    let driver = Driver::new(&[]);
    let options = driver.options();
    let (stopped, _) = driver.run(&options, 3);
    assert_eq!(stopped.unwrap_err().message, "the power is off");
    let other = Options { build: "true".to_owned(), ..options.clone() };
    let refused = driver.run(&other, usize::MAX).0.unwrap_err();
    assert!(refused.message.contains("--start-over"), "{refused}");
    let (found, said) = driver.run(&options, usize::MAX);
    let found = found.unwrap();
    assert!(found.first[0].ends_with(" (change-19)"), "{found:?}");
    // Neither end is built again: the end of the first half was under way.
    let built = said.iter().filter(|line| line.starts_with("building")).count();
    assert!(built <= 4, "{said:#?}");
    // Nor is anything left of it for the next one.
    let (again, _) = driver.run(&Options { start_over: true, ..options }, usize::MAX);
    assert_eq!(again.unwrap().first, found.first);
}

#[test]
fn commits_that_cannot_be_told_apart_are_all_named() {
    let driver = Driver::new(&[SLOWER - 1, SLOWER - 2]);
    let found = driver.run(&driver.options(), usize::MAX).0.unwrap();
    let mut subjects: Vec<&str> =
        found.first.iter().filter_map(|commit| Some(commit.split_once(' ')?.1)).collect();
    subjects.sort_unstable();
    assert_eq!(subjects, ["(change-17)", "(change-18)", "(change-19)"]);
    assert_eq!(found.words, "");
}

#[test]
fn ends_that_are_none_are_refused() {
    let driver = Driver::new(&[]);
    let refused = |options: Options| driver.run(&options, usize::MAX).0.unwrap_err();
    let both_fast = Options { bad: driver.hashes[9].clone(), ..driver.options() };
    let failure = refused(both_fast);
    assert_eq!(failure.code, exit::INCONCLUSIVE);
    assert!(failure.message.contains("not shown to be slower"), "{failure}");
    let from_here = |options| refused(Options { start_over: true, ..options });
    let reversed =
        Options { good: "HEAD".to_owned(), bad: "HEAD~3".to_owned(), ..driver.options() };
    assert!(from_here(reversed).message.contains("not an ancestor"));
    let unknown = Options { good: "--all".to_owned(), ..driver.options() };
    assert!(from_here(unknown).message.contains("has no commit `--all`"));
    let no_module = Options { build: "true".to_owned(), ..driver.options() };
    let failure = from_here(no_module);
    assert!(failure.message.contains("`true` made no module"), "{failure}");
    let nowhere = Options { repository: "/proc".into(), ..driver.options() };
    assert!(from_here(nowhere).message.contains("not a git repository"));
}

#[test]
fn two_at_a_time_are_refused() {
    let driver = Driver::new(&[]);
    let root = driver.folder.path();
    let options = driver.options();
    let _open = State::open(root, &options, [&driver.hashes[0], &driver.hashes[31]]).unwrap();
    let failure = driver.run(&options, usize::MAX).0.unwrap_err();
    assert!(failure.message.contains("another bisection"), "{failure}");
}

#[test]
fn a_parent_and_its_child_are_decided_by_both_ends() {
    let driver = Driver::new(&[]);
    let [good, bad] = [SLOWER - 1, SLOWER].map(|number| driver.hashes[number].clone());
    let (found, said) = driver.run(&Options { good, bad, ..driver.options() }, usize::MAX);
    let found = found.unwrap();
    assert!(found.first[0].ends_with(" (change-19)") && found.first.len() == 1, "{found:?}");
    assert_eq!((found.words.as_str(), found.builds), ("400 to 460", 2), "{said:#?}");
}

#[test]
fn a_step_that_is_killed_or_a_hook_that_fails_is_no_verdict() {
    let driver = Driver::new(&[]);
    let hook = driver.folder.path().join(".git/hooks/post-checkout");
    fs::write(&hook, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let killed =
        Options { build: "cp source driver.ko; kill -9 $PPID".to_owned(), ..driver.options() };
    let failure = driver.run(&killed, usize::MAX).0.unwrap_err();
    assert_eq!((failure.code, failure.message.contains("signal")), (exit::CANNOT_MEASURE, true));
    // A build with a repository of its own: git has told the step about the driver's.
    let build = "git init -q dep && git -C dep rev-parse --show-toplevel | grep -q '/dep$' && cp source driver.ko";
    let options = Options { build: build.to_owned(), start_over: true, ..driver.options() };
    let found = driver.run(&options, usize::MAX).0.unwrap();
    assert!(found.first[0].ends_with(" (change-19)") && found.skipped.is_empty(), "{found:?}");
}
