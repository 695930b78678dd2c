//! Results of all tests, by place.

use std::time::{Duration, Instant};

/// How one test ended in one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Status {
    /// It passed.
    Passed,
    /// It failed, and passed when it ran again, alone.
    Unstable,
    /// It failed.
    Failed,
    /// It has `#[ignore]`.
    Skipped,
    /// It should have run and did not: a failure.
    NotRun(String),
}

#[derive(Debug)]
struct Entry {
    place: String,
    test: String,
    status: Status,
}

/// All results, and how long each part took.
#[derive(Debug)]
pub(crate) struct Report {
    entries: Vec<Entry>,
    lap: Instant,
    laps: Vec<(String, Duration)>,
}

impl Default for Report {
    fn default() -> Self {
        Self { entries: Vec::new(), lap: Instant::now(), laps: Vec::new() }
    }
}

impl Report {
    /// Adds one result.
    pub(crate) fn add(&mut self, place: &str, test: &str, status: Status) {
        self.entries.push(Entry { place: place.to_owned(), test: test.to_owned(), status });
    }

    /// Appends another report.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.entries.append(&mut other.entries);
        self.laps.append(&mut other.laps);
    }

    /// Ends a part, which took the time since the end of the part before or the report's creation.
    pub(crate) fn lap(&mut self, part: &str) {
        let now = Instant::now();
        self.laps.push((part.to_owned(), now - self.lap));
        self.lap = now;
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
            let status = match ending {
                Some((_, ending)) => ending.clone(),
                None => Status::NotRun(reason.to_owned()),
            };
            self.add(place, test, status);
        }
        for (test, _) in endings.iter().filter(|(name, _)| !listed.contains(name)) {
            self.add(place, test, Status::NotRun("ran, but was not listed".to_owned()));
        }
        if listed.is_empty() {
            self.add(place, "(all)", Status::NotRun("no test is listed for this place".to_owned()));
        }
    }

    /// The tests that failed, by place. A test that did not run is none of them.
    pub(crate) fn failed(&self) -> Vec<(String, Vec<String>)> {
        let failed = || self.entries.iter().filter(|entry| entry.status == Status::Failed);
        let places = unique(failed().map(|entry| entry.place.as_str()));
        let of = |place: &str| {
            let of_place = failed().filter(|entry| entry.place == place);
            of_place.map(|entry| entry.test.clone()).collect()
        };
        places.into_iter().map(|place| (place.to_owned(), of(place))).collect()
    }

    /// Tests that failed and passed in `second` are unstable.
    pub(crate) fn amend(&mut self, second: &Self) {
        for entry in self.entries.iter_mut().filter(|entry| entry.status == Status::Failed) {
            // Tests of several programs may share a name.
            let is_it = |it: &&Entry| it.place == entry.place && it.test == entry.test;
            let mut again = second.entries.iter().filter(is_it).peekable();
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

    /// A line a place, one for each test that is no success, and the totals as last line.
    pub(crate) fn summary(&self) -> String {
        let mut lines = Vec::new();
        for place in unique(self.entries.iter().map(|entry| entry.place.as_str())) {
            let all = || self.entries.iter().filter(|entry| entry.place == place);
            let passed = all().filter(|entry| entry.status == Status::Passed).count();
            lines.push(format!("{place}: {passed} of {} passed", all().count()));
        }
        for Entry { place, test, status } in &self.entries {
            match status {
                Status::Passed => {}
                Status::Unstable => lines.push(format!("unstable: {place}: {test}: mend it")),
                Status::Failed => lines.push(format!("failed: {place}: {test}")),
                Status::Skipped => lines.push(format!("skipped: {place}: {test}")),
                Status::NotRun(reason) => lines.push(format!("not run: {place}: {test}: {reason}")),
            }
        }
        if !self.laps.is_empty() {
            let laps = self.laps.iter().map(|(part, took)| format!("{part} {}", took.as_secs()));
            lines.push(format!("seconds: {}", laps.collect::<Vec<_>>().join("; ")));
        }
        lines.push(format!(
            "{} passed, {} failed, {} unstable, {} skipped",
            self.count(|s| *s == Status::Passed),
            self.count(|s| matches!(s, Status::Failed | Status::NotRun(_))),
            self.count(|s| *s == Status::Unstable),
            self.count(|s| *s == Status::Skipped),
        ));
        lines.join("\n")
    }
}

fn unique<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
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
        assert!(summary.ends_with("\n1 passed, 1 failed, 0 unstable, 0 skipped"), "{summary}");
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
        report.add("vm 6.12 rebuilt", "detach", Status::Skipped);
        assert_eq!(
            report.summary(),
            "host: 1 of 1 passed\nvm 6.1: 1 of 1 passed\nvm 6.12 rebuilt: 0 of 2 passed\n\
             failed: vm 6.12 rebuilt: attach\nskipped: vm 6.12 rebuilt: detach\n\
             2 passed, 1 failed, 0 unstable, 1 skipped"
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
        assert_eq!(
            failed,
            [("host".to_owned(), names(&["a", "b"])), ("vm 6.1".to_owned(), names(&["a"]))]
        );
        let mut second = Report::default();
        second.add("host", "a", Status::Passed);
        second.add("host", "b", Status::Passed);
        second.add("host", "b", Status::Failed);
        second.add("host", "c", Status::Passed);
        report.amend(&second);
        let summary = report.summary();
        assert!(!report.is_green());
        assert!(summary.contains("\nunstable: host: a: mend it\nfailed: host: b\n"), "{summary}");
        assert!(summary.ends_with("\n0 passed, 3 failed, 1 unstable, 0 skipped"), "{summary}");
    }

    #[test]
    fn parts_have_their_times() {
        let (mut report, mut other) = (Report::default(), Report::default());
        report.add("host", "x", Status::Passed);
        report.lap("host");
        other.lap("vm 6.1");
        report.append(other);
        let summary = report.summary();
        assert!(summary.contains("\nseconds: host 0; vm 6.1 0\n"), "{summary}");
    }

    #[test]
    fn a_step_that_fails_is_counted() {
        let mut report = Report::default();
        assert_eq!(report.step("build", "x", Ok(3)), Some(3));
        let none: Option<()> = report.step("build", "y", Err(anyhow::anyhow!("no")));
        assert!(none.is_none() && !report.is_green());
    }
}
