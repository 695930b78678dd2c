//! JUnit XML, in which continuous integration shows verdicts.

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite, XmlString};

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The figure passed.
    Passed,
    /// The figure failed.
    Failed,
    /// The figure could not be decided.
    Error,
    /// There was nothing to decide.
    Skipped,
}

/// One case of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The suite that it belongs to, such as a handler. Cases of one suite need not be neighbours.
    pub suite: String,
    /// Its name within the suite, such as a statistic.
    pub name: String,
    /// How it ended.
    pub status: Status,
    /// The reason in one line; not shown if the case passed.
    pub message: String,
    /// The evidence, as plain text; may be empty.
    pub system_out: String,
}

impl Case {
    /// One without evidence.
    pub fn new(
        suite: impl Into<String>,
        name: impl Into<String>,
        status: Status,
        message: impl Into<String>,
    ) -> Self {
        let (suite, name, message) = (suite.into(), name.into(), message.into());
        Self { suite, name, status, message, system_out: String::new() }
    }
}

/// The document `name` of `cases`, whose suites are in the order of their first case. Characters that
/// XML 1.0 forbids are left out. Equal cases give equal bytes.
pub fn document(name: &str, cases: &[Case]) -> Vec<u8> {
    let mut report = Report::new(text(name));
    let mut suites: Vec<TestSuite> = Vec::new();
    for case in cases {
        let test = test_case(case);
        match suites.iter_mut().find(|suite| suite.name == text(&case.suite)) {
            Some(suite) => suite.add_test_case(test),
            None => {
                let mut suite = TestSuite::new(text(&case.suite));
                suite.add_test_case(test);
                suites.push(suite);
                continue;
            }
        };
    }
    report.add_test_suites(suites);
    let mut bytes = Vec::new();
    let result = report.serialize(&mut bytes);
    // Writing to memory cannot fail.
    debug_assert!(result.is_ok(), "always representable: {result:?}");
    bytes
}

/// Without the two characters that XML 1.0 forbids and the library leaves in; it drops control
/// characters itself.
fn text(text: &str) -> XmlString {
    XmlString::new(text.replace(['\u{fffe}', '\u{ffff}'], ""))
}

fn test_case(case: &Case) -> TestCase {
    let status = match case.status {
        Status::Passed => TestCaseStatus::success(),
        Status::Failed => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Status::Error => TestCaseStatus::non_success(NonSuccessKind::Error),
        Status::Skipped => TestCaseStatus::skipped(),
    };
    let mut test = TestCase::new(text(&case.name), status);
    // Viewers group by class and not by suite.
    test.set_classname(text(&case.suite));
    if case.status != Status::Passed {
        test.status.set_message(text(&case.message));
    }
    if !case.system_out.is_empty() {
        test.set_system_out(text(&case.system_out));
    }
    test
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(suite: &str, name: &str, status: Status, message: &str) -> Case {
        Case::new(suite, name, status, message)
    }

    fn xml(cases: &[Case]) -> String {
        String::from_utf8(document("profiler gate", cases)).expect("text")
    }

    #[test]
    fn a_document() {
        let mut hostile = case("a<b>&\"c\"", "TP99", Status::Failed, "1 < 2 & \"3\" ' \u{1b}[31m");
        hostile.system_out = "]]> <&>\n\u{0}\u{fffe}line".to_owned();
        insta::assert_snapshot!(xml(&[
            case("bind_handler", "mean", Status::Passed, "not shown"),
            hostile,
            case("bind_handler", "TP99", Status::Error, "too few calls"),
            case("bind_handler", "TP90", Status::Skipped, "not asked for"),
        ]));
    }

    #[test]
    fn it_is_read_back_as_it_was_meant() {
        let cases = [
            case("s \u{e9}", "n <1>", Status::Failed, "a & b"),
            case("s \u{e9}", "n <2>", Status::Passed, ""),
            case("t", "n", Status::Error, "because"),
            case("t", "m", Status::Skipped, "why"),
        ];
        let back = Report::deserialize_from_str(&xml(&cases)).expect("reads back");
        assert_eq!((back.tests, back.failures, back.errors), (4, 1, 1));
        assert_eq!(back.test_suites.len(), 2);
        assert_eq!(back.test_suites[1].skipped, 1);
        let first = &back.test_suites[0].test_cases[0];
        assert_eq!((first.name.as_str(), back.test_suites[0].name.as_str()), ("n <1>", "s \u{e9}"));
        let TestCaseStatus::NonSuccess { message, .. } = &first.status else {
            panic!("failed: {first:?}")
        };
        assert_eq!(message.as_deref().map(ToString::to_string), Some("a & b".to_owned()));
    }

    #[test]
    fn nothing_is_a_document_too() {
        assert!(xml(&[]).contains("tests=\"0\""));
    }
}
