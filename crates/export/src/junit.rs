//! JUnit XML, in which continuous integration shows verdicts.

use indexmap::IndexMap;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite, XmlString};

/// How a case ended that failed.
pub(super) fn failed() -> TestCaseStatus {
    TestCaseStatus::non_success(NonSuccessKind::Failure)
}

/// How a case ended that could not be decided.
pub(super) fn undecided() -> TestCaseStatus {
    TestCaseStatus::non_success(NonSuccessKind::Error)
}

/// A case of the suite `suite`, such as a handler; `words` are its reason, or the evidence if it passed, and may be empty.
pub(super) fn case(suite: &str, name: &str, status: TestCaseStatus, words: &str) -> TestCase {
    let mut test = TestCase::new(text(name), status);
    // Viewers group by class and not by suite.
    test.set_classname(text(suite));
    if !matches!(test.status, TestCaseStatus::Success { .. }) {
        test.status.set_message(text(words));
    } else if !words.is_empty() {
        test.set_system_out(text(words));
    }
    test
}

/// The document `name` of `cases`, whose suites are in the order of their first case. Characters that
/// XML 1.0 forbids are left out. Equal cases give equal bytes.
pub(super) fn document(name: &str, cases: Vec<TestCase>) -> Vec<u8> {
    let mut report = Report::new(text(name));
    let mut suites: IndexMap<XmlString, TestSuite> = IndexMap::new();
    for case in cases {
        let suite = case.classname.clone().unwrap_or_else(|| text(""));
        let new = TestSuite::new(suite.clone());
        suites.entry(suite).or_insert(new).add_test_case(case);
    }
    report.add_test_suites(suites.into_values());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn xml(cases: Vec<TestCase>) -> String {
        String::from_utf8(document("profiler gate", cases)).expect("text")
    }

    #[test]
    fn a_document() {
        let message = "1 < 2 & \"3\" ' \u{1b}[31m";
        let evidence = "]]> <&>\n\u{0}\u{fffe}line";
        let hostile = case("a<b>&\"c\"", "TP99", failed(), message);
        insta::assert_snapshot!(xml(vec![
            case("bind_handler", "mean", TestCaseStatus::success(), evidence),
            hostile,
            case("bind_handler", "TP99", undecided(), "too few calls"),
            case("bind_handler", "TP90", TestCaseStatus::skipped(), "not asked for"),
        ]));
    }

    #[test]
    fn it_is_read_back_as_it_was_meant() {
        let cases = vec![
            case("s \u{e9}", "n <1>", failed(), "a & b"),
            case("s \u{e9}", "n <2>", TestCaseStatus::success(), ""),
            case("t", "n", undecided(), "because"),
            case("t", "m", TestCaseStatus::skipped(), "why"),
        ];
        let back = Report::deserialize_from_str(&xml(cases)).expect("reads back");
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
        assert!(xml(Vec::new()).contains("tests=\"0\""));
    }
}
