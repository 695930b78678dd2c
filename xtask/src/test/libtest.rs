//! Parses the output of a Rust test binary.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};

use super::report::Status;
use crate::process;

/// The tests that ended, in order. Programs that a test starts may write into its line, so its ending may be that of a later one.
pub(super) fn endings(lines: &[String]) -> Vec<(String, Status)> {
    let mut endings = Vec::new();
    let mut pending = None;
    for line in lines {
        let ending = match line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            Some((name, rest)) => {
                pending = Some(name.trim_end_matches(" - should panic"));
                rest
            }
            None => line.rsplit(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default(),
        };
        let status = match ending {
            "ok" => Status::Passed,
            "FAILED" => Status::Failed,
            _ => continue,
        };
        endings.extend(pending.take().map(|name| (name.to_owned(), status)));
    }
    endings
}

/// The tests that the command would run.
pub(super) fn listed(command: &mut Command) -> Result<Vec<String>> {
    let text = process::stdout(command.arg("--list"))?;
    Ok(text.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect())
}

/// The tests of a binary, with the reasons why a plain run ignores each.
pub(super) fn ignored(binary: &Path) -> Result<Vec<(String, String)>> {
    let all = listed(&mut Command::new(binary))?;
    let ignored = listed(Command::new(binary).arg("--ignored"))?;
    // A plain run would run it here.
    if let Some(test) = all.iter().find(|test| !ignored.contains(test)) {
        bail!("{test} does not say where it runs: `#[ignore = \"...\"]`, as others do");
    }
    let text = process::stdout(&mut Command::new(binary))?;
    let tests = reasons(&text);
    ensure!(tests.len() == all.len(), "{} of {} tests say where they run", tests.len(), all.len());
    Ok(tests)
}

fn reasons(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("test "));
    let tests = lines.filter_map(|line| line.split_once(" ... ignored, "));
    tests.map(|(name, reason)| (name.to_owned(), reason.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<(String, Status)> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        endings(&lines)
    }

    #[test]
    fn every_ending_is_read() {
        let text = "\nrunning 4 tests\ntest a ... ok\ntest b::c ... FAILED\ntest f - should panic ... ok\n\
                    test result: FAILED. 1 passed; 1 failed\n";
        let expected = [("a", Status::Passed), ("b::c", Status::Failed), ("f", Status::Passed)];
        assert_eq!(parse(text), expected.map(|(name, ending)| (name.to_owned(), ending)));
    }

    #[test]
    fn output_of_a_child_may_split_the_line() {
        let text = "test a ... loading module\nall is fine\nok\ntest b ... x\ny FAILED\n";
        let expected = [("a".to_owned(), Status::Passed), ("b".to_owned(), Status::Failed)];
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn a_test_that_never_ended_has_no_ending() {
        assert_eq!(parse("test a ... \nthread 'a' panicked\n"), []);
        assert_eq!(parse("ok\n"), []);
    }

    #[test]
    fn this_binary_lists_its_tests() {
        let tests = listed(&mut Command::new(std::env::current_exe().unwrap())).unwrap();
        assert!(tests.contains(&"test::libtest::tests::this_binary_lists_its_tests".to_owned()));
        let error = ignored(&std::env::current_exe().unwrap()).unwrap_err();
        assert!(error.to_string().contains("does not say where it runs"), "{error}");
    }

    #[test]
    fn reasons_are_read() {
        let text = "test a ... ignored, needs x, y\ntest b ... ignored\ntest c ... ok\n";
        assert_eq!(reasons(text), [("a".to_owned(), "needs x, y".to_owned())]);
    }
}
