//! Results of all tests, by place.

use std::collections::BTreeMap;

/// How one test ended in one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Status {
    /// It passed.
    Passed,
    /// It failed, and passed when it ran again, alone.
    Unstable,
    /// It failed.
    Failed,
    /// It should have run and did not: a failure.
    NotRun(String),
}

#[derive(Debug)]
struct Entry {
    place: String,
    test: String,
    status: Status,
}

/// All results.
#[derive(Debug, Default)]
pub(crate) struct Report {
    entries: Vec<Entry>,
}

impl Report {
    /// Adds one result.
    pub(crate) fn add(&mut self, place: &str, test: &str, status: Status) {
        self.entries.push(Entry { place: place.to_owned(), test: test.to_owned(), status });
    }

    /// Appends another report.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.entries.append(&mut other.entries);
    }

    /// Adds the result of a step; returns its value if it succeeded.
    pub(crate) fn step<T>(
        &mut self,
        place: &str,
        name: &str,
        result: anyhow::Result<T>,
    ) -> Option<T> {
        match result {
            Ok(value) => {
                self.add(place, name, Status::Passed);
                Some(value)
            }
            Err(error) => {
                eprintln!("error: {place}: {name}: {error:#}");
                self.add(place, name, Status::Failed);
                None
            }
        }
    }

    /// Adds the tests of a run. A listed test without an ending, an ending that was not listed and an empty
    /// list are failures.
    pub(crate) fn add_run(
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
    pub(crate) fn failed(&self) -> Vec<(String, String)> {
        let failed = self.entries.iter().filter(|entry| entry.status == Status::Failed);
        failed.map(|entry| (entry.place.clone(), entry.test.clone())).collect()
    }

    /// Tests that failed and passed in `second` are unstable.
    pub(crate) fn amend(&mut self, second: &Self) {
        for entry in self.entries.iter_mut().filter(|entry| entry.status == Status::Failed) {
            // Tests of several programs may share a name.
            let again = second.entries.iter().filter(|it| it.place == entry.place);
            let mut again = again.filter(|it| it.test == entry.test).peekable();
            if again.peek().is_some() && again.all(|it| it.status == Status::Passed) {
                entry.status = Status::Unstable;
            }
        }
    }

    fn count(&self, is_it: impl Fn(&Status) -> bool) -> usize {
        self.entries.iter().filter(|entry| is_it(&entry.status)).count()
    }

    /// True if no test failed and some ran.
    pub(crate) fn is_green(&self) -> bool {
        self.count(|s| *s == Status::Passed) > 0
            && self.count(|s| matches!(s, Status::Failed | Status::NotRun(_))) == 0
    }

    /// A line for each place, one for each test that is no success, and the totals as last line.
    pub(crate) fn summary(&self) -> String {
        let mut places: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for entry in &self.entries {
            let (passed, all) = places.entry(&entry.place).or_default();
            *passed += usize::from(entry.status == Status::Passed);
            *all += 1;
        }
        let places = places.iter();
        let mut lines: Vec<String> = places
            .map(|(place, (passed, all))| format!("{place}: {passed} of {all} passed"))
            .collect();
        for Entry { place, test, status } in &self.entries {
            match status {
                Status::Passed => {}
                Status::Unstable => lines.push(format!("unstable: {place}: {test}: mend it")),
                Status::Failed => lines.push(format!("failed: {place}: {test}")),
                Status::NotRun(reason) => {
                    let reason = reason.replace('\n', " ");
                    lines.push(format!("not run: {place}: {test}: {reason}"));
                }
            }
        }
        lines.push(format!(
            "{} passed, {} failed, {} unstable",
            self.count(|s| *s == Status::Passed),
            self.count(|s| matches!(s, Status::Failed | Status::NotRun(_))),
            self.count(|s| *s == Status::Unstable),
        ));
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
        report.amend(&second);
        let summary = report.summary();
        assert!(!report.is_green());
        assert!(summary.contains("\nunstable: host: a: mend it\nfailed: host: b\n"), "{summary}");
        assert!(summary.ends_with("\n0 passed, 3 failed, 1 unstable"), "{summary}");
    }

    #[test]
    fn a_step_that_fails_is_counted() {
        let mut report = Report::default();
        assert_eq!(report.step("build", "x", Ok(3)), Some(3));
        let none: Option<()> = report.step("build", "y", Err(anyhow::anyhow!("no")));
        assert!(none.is_none() && !report.is_green());
    }
}
