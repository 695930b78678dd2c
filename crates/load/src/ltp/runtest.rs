//! Lists of tests: the files of LTP's `runtest` folder.
//!
//! A line has a test's name and its command, separated by blanks; comments start with `#`.

use std::path::{Path, PathBuf};

use regex::Regex;

use profiler_base::error::Failure;
use profiler_base::text::nearest;
use profiler_recording::loads::LtpTest;

use super::{bad_choice, bad_ltp};

/// The path of list `suite`.
pub(super) fn find(root: &Path, suite: &str) -> Result<PathBuf, Failure> {
    let path = root.join("runtest").join(suite);
    if !suite.contains('/') && path.is_file() {
        return Ok(path);
    }
    let wanted = path.file_name().unwrap_or_default().to_string_lossy();
    let entries = std::fs::read_dir(root.join("runtest")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let near = did_you_mean(names, &wanted, "--ltp-suite ");
    Err(bad_choice(format!("no list of tests {}{near}", path.display())))
}

/// Reads the list at `path`.
pub(super) fn read(path: &Path) -> Result<Vec<LtpTest>, Failure> {
    let shown = path.display();
    let bytes = std::fs::read(path)
        .map_err(|error| bad_ltp(format!("{shown}: {error}: this list of tests cannot be read")))?;
    parse_all(&bytes).map_err(|(line, reason)| bad_ltp(format!("{shown}:{line}: {reason}")))
}

/// All tests, or the number of the first bad line, and what is bad.
pub(super) fn parse_all(bytes: &[u8]) -> Result<Vec<LtpTest>, (usize, &'static str)> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().zip(1..);
    let tests =
        lines.filter_map(|(line, number)| parse(line).map_err(|why| (number, why)).transpose());
    tests.collect()
}

fn parse(line: &str) -> Result<Option<LtpTest>, &'static str> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    if line.contains(['\0', '\u{fffd}']) {
        return Err("has bytes that are not text");
    }
    let Some((name, command)) = line.split_once([' ', '\t']) else {
        return Err("has a name and no command: write `NAME COMMAND ARGUMENTS...`");
    };
    if name.contains(['"', '\'']) {
        return Err("starts with a quote instead of a test's name");
    }
    // A backslash at the end is none of a quote, to sh as well.
    if shlex::split(&format!("{command}\n")).is_none() {
        return Err("has a quote that is not closed");
    }
    Ok(Some(LtpTest { name: name.to_owned(), command: command.trim().to_owned() }))
}

/// The name most like `wanted`, as a question.
fn did_you_mean(names: impl Iterator<Item = String>, wanted: &str, option: &str) -> String {
    let near = nearest(wanted, names);
    near.map_or_else(String::new, |near| format!(": did you mean {option}{near}?"))
}

/// The tests whose names match `pattern`, if there is one, and do not match `skip`.
pub(super) fn select(
    mut tests: Vec<LtpTest>,
    pattern: Option<&str>,
    skip: Option<&str>,
    suite: &str,
) -> Result<Vec<LtpTest>, Failure> {
    if let Some(pattern) = pattern {
        let regex = matching(&tests, pattern, suite)?;
        tests.retain(|test| regex.is_match(&test.name));
    } else if tests.is_empty() {
        return Err(bad_ltp(format!("runtest/{suite} has no test in it")));
    }
    if let Some(skip) = skip {
        let regex = matching(&tests, skip, suite)?;
        tests.retain(|test| !regex.is_match(&test.name));
        if tests.is_empty() {
            let text = format!("--ltp-skip `{skip}` leaves no test of runtest/{suite} to run");
            return Err(bad_choice(text));
        }
    }
    Ok(tests)
}

/// A pattern that matches a test. One that matches none is an error: other tests than were meant would run.
fn matching(tests: &[LtpTest], pattern: &str, suite: &str) -> Result<Regex, Failure> {
    let regex = Regex::new(pattern).map_err(|error| {
        let error = error.to_string();
        let reason = error.lines().last().unwrap_or_default();
        bad_choice(format!("`{pattern}` is not a regular expression: {reason}"))
    })?;
    if tests.iter().any(|test| regex.is_match(&test.name)) {
        return Ok(regex);
    }
    let (total, names) = (tests.len(), tests.iter().map(|test| test.name.clone()));
    let near = did_you_mean(names, pattern, "");
    Err(bad_choice(format!(
        "`{pattern}` matches none of the {total} tests of runtest/{suite}{near}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str, command: &str) -> LtpTest {
        LtpTest { name: name.to_owned(), command: command.to_owned() }
    }

    #[test]
    fn a_line_is_a_name_and_a_command() {
        assert_eq!(parse("open01 open01"), Ok(Some(test("open01", "open01"))));
        assert_eq!(
            parse("  execve05\texecve05 -i 5  -n 32 "),
            Ok(Some(test("execve05", "execve05 -i 5  -n 32")))
        );
        for nothing in ["", "   ", "# a comment", "\t#x"] {
            assert_eq!(parse(nothing), Ok(None), "{nothing:?}");
        }
        for bad in ["alone", "x echo 'open", "x echo \"open", "x \u{fffd}", "'a b' c"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for good in ["x echo \"it's\"", "x echo \\'", "x echo '\"'", "x echo '\\'"] {
            assert!(parse(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_shell_is_used_only_if_the_command_needs_it() {
        assert_eq!(test("x", "execve05 -i 5  -n 32").argv(), ["execve05", "-i", "5", "-n", "32"]);
        for command in ["a; b", "a \"b c\"", "a $HOME", "a > b", "a | b", "X=1 a", "a && b"] {
            assert_eq!(test("x", command).argv(), ["/bin/sh", "-c", command]);
        }
        assert_eq!(test("x", "a; b").plain_program(), None);
        assert_eq!(test("x", "a b").plain_program(), Some("a"));
    }

    #[test]
    fn errors_have_the_number_of_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("syscalls");
        std::fs::write(&path, "# list\nopen01 open01\n\nbroken\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("syscalls:4: has a name and no command"), "{error}");
        std::fs::write(&path, b"open01 open01\nx \xff\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains(":2: "));
        assert!(read(&folder.path().join("none")).is_err());
    }

    #[test]
    fn tests_are_left_out_by_name() {
        let tests = || ["bind01", "leapsec01", "leapsec02"].map(|name| test(name, name)).to_vec();
        let leave_out = |pattern| select(tests(), None, Some(pattern), "syscalls");
        let left = leave_out("^leapsec").unwrap();
        assert_eq!(left, [test("bind01", "bind01")]);
        let error = leave_out("^leepsec0").unwrap_err().to_string();
        assert!(error.contains("`^leepsec0` matches none of the 3 tests"), "{error}");
        let error = leave_out("0").unwrap_err().to_string();
        assert!(error.contains("leaves no test of runtest/syscalls"), "{error}");
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_an_error_with_a_similar_name() {
        let tests = || vec![test("connect01", "connect01"), test("bind01", "bind01")];
        let selected = select(tests(), Some("^bind"), None, "syscalls").unwrap();
        assert_eq!(selected, [test("bind01", "bind01")]);
        assert_eq!(select(tests(), None, None, "syscalls").unwrap().len(), 2);
        let error = select(tests(), Some("^conect0"), None, "syscalls").unwrap_err().to_string();
        assert!(error.contains("`^conect0`") && error.contains("connect01"), "{error}");
        let error = select(tests(), Some("["), None, "x").unwrap_err().to_string();
        assert!(error.contains("not a regular expression"), "{error}");
        assert_eq!(
            select(Vec::new(), None, None, "x").unwrap_err().code,
            profiler_base::error::exit::BAD_INPUT
        );
    }
}
