//! Results of all tests, by place.

use std::collections::BTreeMap;

use anyhow::Result;

/// How one test ended in one place, the worst last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Status {
    Passed,
    /// It failed, and passed when it ran again, alone.
    Unstable,
    Failed,
    /// It should have run and did not: a failure.
    NotRun(String),
}

/// All results, by place and test. Of tests of several programs that share a name the worst counts.
#[derive(Debug, Default)]
pub(super) struct Report(BTreeMap<(String, String), Status>);

impl Report {
    pub(super) fn add(&mut self, place: &str, test: &str, status: Status) {
        let known = self.0.entry((place.to_owned(), test.to_owned())).or_insert(Status::Passed);
        if status > *known {
            *known = status;
        }
    }

    /// Appends another report.
    pub(super) fn append(&mut self, other: Self) {
        for ((place, test), status) in other.0 {
            self.add(&place, &test, status);
        }
    }

    /// Adds the result of a step.
    pub(super) fn step(&mut self, place: &str, name: &str, result: Result<()>) {
        if let Err(error) = &result {
            eprintln!("error: {place}: {name}: {error:#}");
        }
        self.add(place, name, if result.is_ok() { Status::Passed } else { Status::Failed });
    }

    /// Adds the tests of a run. A listed test without an ending, an ending that was not listed and an empty
    /// list are failures.
    pub(super) fn add_run(
        &mut self,
        place: &str,
        listed: &[String],
        endings: &[(String, Status)],
        reason: &str,
    ) {
        for test in listed {
            let ending = endings.iter().find(|(name, _)| name == test);
            let status = ending.map(|(_, ending)| ending.clone());
            self.add(place, test, status.unwrap_or_else(|| Status::NotRun(reason.to_owned())));
        }
        for (test, _) in endings.iter().filter(|(name, _)| !listed.contains(name)) {
            self.add(place, test, Status::NotRun("ran, but was not listed".to_owned()));
        }
        if listed.is_empty() {
            self.add(place, "(all)", Status::NotRun("no test is listed for this place".to_owned()));
        }
    }

    /// Place and name of each test that failed. A test that did not run is none of them.
    pub(super) fn failed(&self) -> Vec<(String, String)> {
        let failed = self.0.iter().filter(|(_, status)| **status == Status::Failed);
        failed.map(|(test, _)| test.clone()).collect()
    }

    /// Tests that failed and passed in `second` are unstable.
    pub(super) fn amend(&mut self, second: &Self) {
        for (test, status) in &mut self.0 {
            if *status == Status::Failed && second.0.get(test) == Some(&Status::Passed) {
                *status = Status::Unstable;
            }
        }
    }

    /// True if no test failed and some ran.
    pub(super) fn is_green(&self) -> bool {
        !self.0.is_empty() && self.0.values().all(|status| *status <= Status::Unstable)
    }

    /// A line for each place, one for each test that is no success, and the totals as last line.
    pub(super) fn summary(&self) -> String {
        let mut places: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
        let mut bad = Vec::new();
        for ((place, test), status) in &self.0 {
            let [passed, all] = places.entry(place).or_default();
            *passed += usize::from(*status == Status::Passed);
            *all += 1;
            match status {
                Status::Passed => {}
                Status::Unstable => bad.push(format!("unstable: {place}: {test}: mend it")),
                Status::Failed => bad.push(format!("failed: {place}: {test}")),
                Status::NotRun(reason) => {
                    let reason = reason.replace('\n', " ");
                    bad.push(format!("not run: {place}: {test}: {reason}"));
                }
            }
        }
        let passed: usize = places.values().map(|[passed, _]| passed).sum();
        let unstable = self.0.values().filter(|status| **status == Status::Unstable).count();
        let failed = bad.len() - unstable;
        let places = places.iter();
        let mut lines: Vec<String> = places
            .map(|(place, [passed, all])| format!("{place}: {passed} of {all} passed"))
            .collect();
        lines.append(&mut bad);
        lines.push(format!("{passed} passed, {failed} failed, {unstable} unstable"));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_listed_test_that_did_not_run_is_a_failure() {
        let mut report = Report::default();
        let endings = [("a".to_owned(), Status::Passed)];
        report.add_run("vm 6.1", &names(&["a", "b"]), &endings, "the VM ended");
        assert!(!report.is_green());
        let summary = report.summary();
        assert!(summary.contains("not run: vm 6.1: b: the VM ended"), "{summary}");
        assert!(summary.ends_with("\n1 passed, 1 failed, 0 unstable"), "{summary}");
    }

    #[test]
    fn nothing_listed_or_nothing_run_is_a_failure() {
        assert!(!Report::default().is_green());
        let mut report = Report::default();
        report.add("host", "x", Status::Passed);
        assert!(report.is_green());
        report.add_run("vm 6.1", &[], &[], "");
        assert!(!report.is_green());
    }

    #[test]
    fn the_summary_has_a_line_for_each_place() {
        let mut report = Report::default();
        report.add("host", "unit", Status::Passed);
        report.add("vm 6.1", "attach", Status::Passed);
        report.add("vm 6.12 rebuilt", "attach", Status::Failed);
        assert_eq!(
            report.summary(),
            "host: 1 of 1 passed\nvm 6.1: 1 of 1 passed\nvm 6.12 rebuilt: 0 of 1 passed\n\
             failed: vm 6.12 rebuilt: attach\n\
             2 passed, 1 failed, 0 unstable"
        );
    }

    #[test]
    fn a_test_that_fails_once_is_unstable_and_one_that_fails_twice_has_failed() {
        let mut report = Report::default();
        for (place, test) in [("host", "a"), ("host", "b"), ("vm 6.1", "a")] {
            report.add(place, test, Status::Failed);
        }
        report.add("host", "c", Status::NotRun("it died".to_owned()));
        let failed = report.failed();
        let expected = [("host", "a"), ("host", "b"), ("vm 6.1", "a")];
        assert_eq!(failed, expected.map(|(place, test)| (place.to_owned(), test.to_owned())));
        let mut second = Report::default();
        second.add("host", "a", Status::Passed);
        second.add("host", "b", Status::Passed);
        second.add("host", "b", Status::Failed);
        second.add("host", "c", Status::Passed);
        second.add("vm 6.1", "a", Status::NotRun("it died".to_owned()));
        report.amend(&second);
        let summary = report.summary();
        assert!(!report.is_green());
        assert!(summary.contains("\nunstable: host: a: mend it\nfailed: host: b\n"), "{summary}");
        assert!(summary.ends_with("\n0 passed, 3 failed, 1 unstable"), "{summary}");
    }

    #[test]
    fn a_step_that_fails_is_counted() {
        let mut report = Report::default();
        report.step("build", "x", Ok(()));
        assert!(report.is_green());
        report.step("build", "y", Err(anyhow::anyhow!("no")));
        assert!(!report.is_green());
    }
}
