//! How long a handler had probes: a reader of its figures has to know while it was shed.

use std::time::Instant;

use profiler_base::stats::nanoseconds;
use profiler_recording::warning::{Handlers, Warning};

/// Shorter gaps are attach latency; they are not reported.
const WORTH_NS: u64 = 1_000_000;

/// The time in which a handler had probes.
#[derive(Debug)]
pub(super) struct Coverage {
    /// Since when it has probes, or until when that was counted; `None` while it is shed.
    since: Option<Instant>,
    /// Not yet counted of the time before it was shed, in nanoseconds.
    before_ns: u64,
    /// Counted of the interval so far, in nanoseconds.
    pub(super) interval_ns: u64,
}

impl Coverage {
    /// Begins with probes that were put on by `at`.
    pub(super) fn begin(at: Instant) -> Self {
        Self { since: Some(at), before_ns: 0, interval_ns: 0 }
    }

    /// The probes came off.
    pub(super) fn off(&mut self, at: Instant) {
        self.before_ns += self.open_ns(at);
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

    fn open_ns(&self, at: Instant) -> u64 {
        self.since.map_or(0, |since| nanoseconds(at.saturating_duration_since(since)))
    }

    /// Counts the time until `at`: nanoseconds since it was called before.
    pub(super) fn advance(&mut self, at: Instant) -> u64 {
        let more_ns = std::mem::take(&mut self.before_ns) + self.open_ns(at);
        self.since = self.since.map(|since| since.max(at));
        self.interval_ns += more_ns;
        more_ns
    }
}

/// The warning about handlers that had probes for less than the window, if any. Each comes with its time, in nanoseconds.
pub(super) fn partly<'a>(
    handlers: impl Iterator<Item = (&'a str, u64)>,
    window_ns: u64,
) -> Option<Warning> {
    let (mut names, mut words) = (Vec::new(), Vec::new());
    for (name, covered_ns) in handlers {
        if covered_ns.saturating_add(WORTH_NS) < window_ns {
            let [covered, window] = [covered_ns, window_ns].map(|ns| ns as f64 / 1e9);
            words.push(format!("{name} {covered:.1} s of {window:.1} s"));
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
        let seconds =
            |coverage: &mut Coverage, second| coverage.advance(at(second)) / 1_000_000_000;
        assert_eq!(seconds(&mut coverage, 60), 40);
        assert_eq!(seconds(&mut coverage, 120), 60);
        assert_eq!(coverage.interval_ns, 100_000_000_000);
        coverage.off(at(130));
        assert_eq!(seconds(&mut coverage, 180), 10);
        assert_eq!(seconds(&mut coverage, 181), 0);
        coverage.on(at(240));
        assert_eq!((seconds(&mut coverage, 240), seconds(&mut coverage, 241)), (0, 1));
    }

    #[test]
    fn those_with_less_than_the_window_are_named() {
        let covered = [("a", 60_000_000_000), ("b", 12_000_000_000), ("c", 0)];
        let warning = partly(covered.into_iter(), 60_000_000_000);
        let expected = "b 12.0 s of 60.0 s, c 0.0 s of 60.0 s".to_owned();
        let handlers = Handlers(vec!["b".to_owned(), "c".to_owned()]);
        assert_eq!(warning, Some(Warning::PartlyMeasured(handlers, expected)));
        assert_eq!(partly(covered[..1].iter().copied(), 60_000_000_000), None);
    }
}
