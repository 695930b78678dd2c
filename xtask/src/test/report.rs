//! Results of all tests, by place.

use std::fmt::Write as _;
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
    /// It does not apply there, for this reason.
    LeftOut(String),
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

    /// A table of the tests in VMs, the reasons for those that did not run, and the totals as last line.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_places(&mut text);
        let _ = self.write_exceptions(&mut text);
        let _ = self.write_left_out(&mut text);
        let _ = self.write_laps(&mut text);
        let _ = write!(
            text,
            "{} passed, {} failed, {} unstable, {} skipped",
            self.count(|s| *s == Status::Passed),
            self.count(|s| matches!(s, Status::Failed | Status::NotRun(_))),
            self.count(|s| *s == Status::Unstable),
            self.count(|s| *s == Status::Skipped),
        );
        text
    }

    /// One row per test, one column per place; places that share no test get tables of their own.
    fn write_places(&self, text: &mut String) -> std::fmt::Result {
        let places = unique(self.entries.iter().map(|entry| entry.place.as_str()));
        let (mut tabled, plain): (Vec<&str>, Vec<&str>) =
            places.into_iter().partition(|place| place.starts_with(super::VM_PLACE));
        // Longer jobs run first: their order says nothing.
        tabled.sort_unstable();
        for place in plain {
            let of_place = self.entries.iter().filter(|entry| entry.place == place);
            let (mut passed, mut all) = (0, 0);
            for entry in of_place {
                all += 1;
                passed += usize::from(entry.status == Status::Passed);
            }
            writeln!(text, "{place}: {passed} of {all} passed")?;
        }
        let of_vm = |entry: &&Entry| entry.place.starts_with(super::VM_PLACE);
        let mut tests = unique(self.entries.iter().filter(of_vm).map(|entry| entry.test.as_str()));
        tests.sort_unstable();
        if tests.is_empty() {
            return Ok(());
        }
        let width = tests.iter().map(|test| test.len()).max().unwrap_or_default();
        write!(text, "{:width$}", "")?;
        for place in &tabled {
            write!(text, "  {:7}", place.trim_start_matches(super::VM_PLACE))?;
        }
        writeln!(text)?;
        for test in tests {
            write!(text, "{test:width$}")?;
            for place in &tabled {
                let cell = match self.find(place, test) {
                    None => "-",
                    Some(Status::Passed) => "ok",
                    Some(Status::Unstable) => "unstable",
                    Some(Status::Failed) => "FAILED",
                    Some(Status::Skipped) => "skipped",
                    Some(Status::LeftOut(_)) => "n/a",
                    Some(Status::NotRun(_)) => "NOT RUN",
                };
                let column = place.trim_start_matches(super::VM_PLACE).len().max(7);
                write!(text, "  {cell:column$}")?;
            }
            while text.ends_with(' ') {
                text.pop();
            }
            writeln!(text)?;
        }
        Ok(())
    }

    fn write_exceptions(&self, text: &mut String) -> std::fmt::Result {
        for entry in &self.entries {
            match &entry.status {
                Status::Passed | Status::LeftOut(_) => {}
                Status::Unstable => {
                    writeln!(text, "unstable: {}: {}: mend it", entry.place, entry.test)?;
                }
                Status::Failed => writeln!(text, "failed: {}: {}", entry.place, entry.test)?,
                Status::Skipped => writeln!(text, "skipped: {}: {}", entry.place, entry.test)?,
                Status::NotRun(reason) => {
                    writeln!(text, "not run: {}: {}: {reason}", entry.place, entry.test)?;
                }
            }
        }
        Ok(())
    }

    /// A line for each place and reason.
    fn write_left_out(&self, text: &mut String) -> std::fmt::Result {
        let mut groups: Vec<((&str, &str), Vec<&str>)> = Vec::new();
        for entry in &self.entries {
            let Status::LeftOut(why) = &entry.status else { continue };
            let key = (entry.place.as_str(), why.as_str());
            match groups.iter_mut().find(|(found, _)| *found == key) {
                Some((_, tests)) => tests.push(&entry.test),
                None => groups.push((key, vec![&entry.test])),
            }
        }
        for ((place, why), tests) in groups {
            writeln!(text, "not run: {place}: {why}: {} tests: {}", tests.len(), tests.join(", "))?;
        }
        Ok(())
    }

    fn write_laps(&self, text: &mut String) -> std::fmt::Result {
        if self.laps.is_empty() {
            return Ok(());
        }
        let laps: Vec<String> =
            self.laps.iter().map(|(part, took)| format!("{part} {}", took.as_secs())).collect();
        writeln!(text, "seconds: {}", laps.join("; "))
    }

    fn find(&self, place: &str, test: &str) -> Option<&Status> {
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| entry.place == place && entry.test == test)?;
        Some(&entry.status)
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
    fn what_is_left_out_is_named_with_its_reason() {
        let mut report = Report::default();
        report.add("vm 5.10", "a", Status::Passed);
        report.add("vm 5.10", "b", Status::LeftOut("it has no such thing".to_owned()));
        report.add("vm 5.10", "c", Status::LeftOut("it has no such thing".to_owned()));
        let summary = report.summary();
        assert!(report.is_green());
        assert!(summary.contains("\nb  n/a\n"), "{summary}");
        let line = "not run: vm 5.10: it has no such thing: 2 tests: b, c\n";
        assert!(summary.contains(line), "{summary}");
        assert!(summary.ends_with("\n1 passed, 0 failed, 0 unstable, 0 skipped"), "{summary}");
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
    fn the_table_has_a_column_for_each_place() {
        let mut report = Report::default();
        report.add("host", "unit", Status::Passed);
        report.add("vm 6.1", "attach", Status::Passed);
        report.add("vm 6.12 rebuilt", "attach", Status::Failed);
        report.add("vm 6.12 rebuilt", "detach", Status::Skipped);
        assert_eq!(
            report.summary(),
            "host: 1 of 1 passed\n        6.1      6.12 rebuilt\nattach  ok       FAILED\n\
             detach  -        skipped\nfailed: vm 6.12 rebuilt: attach\n\
             skipped: vm 6.12 rebuilt: detach\n2 passed, 1 failed, 0 unstable, 1 skipped"
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
