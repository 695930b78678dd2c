//! For how long a handler had probes: shed, it is not measured, and a reader of its figures has to know.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::recording::warning::{Handlers, Warning};
use crate::stats::nanoseconds;

/// Shorter gaps are attach latency; they are not reported.
const WORTH_NS: u64 = 1_000_000;

/// The time of an interval in which a handler had probes.
#[derive(Debug)]
pub(super) struct Coverage {
    /// Since when it has probes; `None` while it is shed.
    since: Option<Instant>,
    /// Before that, in nanoseconds.
    before_ns: u64,
}

impl Coverage {
    /// Begins with probes that were put on by `at`.
    pub(super) fn begin(at: Instant) -> Self {
        Self { since: Some(at), before_ns: 0 }
    }

    /// The probes came off.
    pub(super) fn off(&mut self, at: Instant) {
        self.before_ns = self.until(at);
        self.since = None;
    }

    /// The probes were put back.
    pub(super) fn on(&mut self, at: Instant) {
        self.since.get_or_insert(at);
    }

    /// Whether it has probes.
    pub(super) fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// Nanoseconds of the interval so far.
    pub(super) fn until(&self, at: Instant) -> u64 {
        let open = self.since.map_or(0, |since| nanoseconds(at.saturating_duration_since(since)));
        self.before_ns.saturating_add(open)
    }

    /// Ends the interval, and begins the next there: nanoseconds of the one that ended.
    pub(super) fn close(&mut self, at: Instant) -> u64 {
        let covered = self.until(at);
        self.before_ns = 0;
        self.since = self.since.map(|since| since.max(at));
        covered
    }
}

/// The warning about those of these handlers that had probes for less than the window, if there are any.
pub(super) fn partly<'a>(
    handlers: impl Iterator<Item = &'a str>,
    covered_ns: &BTreeMap<String, u64>,
    window_ns: u64,
) -> Option<Warning> {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let (mut names, mut words) = (Vec::new(), Vec::new());
    for name in handlers {
        let covered = covered_ns.get(name).copied().unwrap_or(0);
        if covered.saturating_add(WORTH_NS) < window_ns {
            words.push(format!("{name} {:.1} s of {:.1} s", seconds(covered), seconds(window_ns)));
            names.push(name.to_owned());
        }
    }
    (!names.is_empty()).then(|| Warning::PartlyMeasured(Handlers(names), words.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_time_without_probes_is_left_out_of_each_interval() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut coverage = Coverage::begin(start);
        coverage.off(at(10));
        assert!(!coverage.is_on());
        coverage.on(at(30));
        assert_eq!(coverage.close(at(60)), 40_000_000_000);
        assert_eq!(coverage.close(at(120)), 60_000_000_000);
        coverage.off(at(120));
        assert_eq!(coverage.close(at(180)), 0);
        coverage.on(at(240));
        assert_eq!((coverage.close(at(240)), coverage.until(at(241))), (0, 1_000_000_000));
    }

    #[test]
    fn those_with_less_than_the_window_are_named() {
        let covered = BTreeMap::from(
            [("a", 60_000), ("b", 12_000)].map(|(name, ms)| (name.to_owned(), ms * 1_000_000)),
        );
        let names = ["a", "b", "c"];
        let warning = partly(names.into_iter(), &covered, 60_000_000_000);
        let expected = "b 12.0 s of 60.0 s, c 0.0 s of 60.0 s".to_owned();
        let handlers = Handlers(vec!["b".to_owned(), "c".to_owned()]);
        assert_eq!(warning, Some(Warning::PartlyMeasured(handlers, expected)));
        assert_eq!(partly(names[..1].iter().copied(), &covered, 60_000_000_000), None);
    }
}
