//! Parses the output of a Rust test binary.

use super::report::Status;

/// The tests that ended, in order. Programs that a test starts may write into its line, so its ending may be that of a later one.
pub(crate) fn endings(lines: &[String]) -> Vec<(String, Status)> {
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

/// The names in the output of `--list`.
pub(crate) fn listed(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect()
}

/// The tests that a run ignored, with the reasons.
pub(crate) fn ignored(output: &str) -> Vec<(String, String)> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("test "));
    let ignored = lines.filter_map(|line| line.split_once(" ... ignored, "));
    ignored.map(|(name, reason)| (name.to_owned(), reason.to_owned())).collect()
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
    fn the_list_is_read() {
        let text = "a: test\nb::c: test\nd: benchmark\n\n2 tests, 1 benchmark\n";
        assert_eq!(listed(text), ["a", "b::c"]);
    }

    #[test]
    fn reasons_are_read() {
        let text = "test a ... ignored, needs x, y\ntest b ... ignored\ntest c ... ok\n";
        assert_eq!(ignored(text), [("a".to_owned(), "needs x, y".to_owned())]);
    }
}
