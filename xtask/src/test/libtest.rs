//! Parses the output of a Rust test binary.

use std::process::Command;

use anyhow::Result;
use serde::Deserialize;

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

/// A test of a binary.
#[derive(Debug, Deserialize)]
pub(super) struct Listed {
    pub(super) name: String,
    /// The reason why a plain run ignores it.
    #[serde(rename = "ignore_message")]
    pub(super) reason: String,
}

/// The tests that the command would run. Their reasons are in libtest's JSON alone, which it writes if told that this is a
/// nightly.
pub(super) fn listed(command: &mut Command) -> Result<Vec<Listed>> {
    command.args(["--list", "-Zunstable-options", "--format=json"]).env("RUSTC_BOOTSTRAP", "1");
    let text = process::stdout(command)?;
    let tests = text.lines().filter(|line| line.contains(r#""event": "discovered""#));
    tests.map(|line| Ok(serde_json::from_str(line)?)).collect()
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
        let find = |name: &str| tests.iter().find(|test| test.name.ends_with(name)).unwrap();
        assert_eq!(find("a_script_that_does_not_quote_is_refused").reason, "needs the linters");
        assert_eq!(find("this_binary_lists_its_tests").reason, "");
    }
}
