//! The pieces that a window is cut into.

use std::borrow::Cow;
use std::time::Instant;

use crate::probe::account::Doubt;
use crate::probe::recorder::{HandlerStats, Recorder};
use crate::probe::{Drained, Precision};
use crate::recording::measure::Losses;
use crate::recording::{Interval, IntervalStats};
use crate::stats::{Durations, nanoseconds};

/// The interval that is being measured.
pub(super) struct Open {
    began: Instant,
    handlers: Vec<OfInterval>,
}

/// One handler in it.
struct OfInterval {
    durations: Durations,
    doubt: Doubt,
}

impl OfInterval {
    /// Without what is doubtful, and how much that is.
    fn sure(&self, of: &HandlerStats) -> (Cow<'_, Durations>, u64) {
        self.durations.without(self.doubt.at(&of.now.books))
    }
}

impl Open {
    /// The first interval of the window of `recorder`.
    pub(super) fn new(recorder: &Recorder, precision: Precision, began: Instant) -> Self {
        let handlers = recorder.handlers().iter().map(|of| OfInterval {
            durations: precision.durations(),
            doubt: Doubt::since(&of.began.books),
        });
        Self { began, handlers: handlers.collect() }
    }

    pub(super) fn add(&mut self, drained: &[Drained]) {
        for (handler, drained) in self.handlers.iter_mut().zip(drained) {
            handler.durations += &drained.durations;
        }
    }

    /// One line on the interval: calls, their rate, the handler with the highest TP99, losses.
    pub(super) fn line(&self, window_began: Instant, now: Instant, recorder: &Recorder) -> String {
        let all = recorder.handlers();
        let durations: Vec<_> =
            self.handlers.iter().zip(all).map(|(handler, of)| handler.sure(of).0).collect();
        let calls: u64 = durations.iter().map(|durations| durations.len()).sum();
        let idle = self.handlers.iter().filter(|handler| handler.durations.is_empty()).count();
        let length = (now - self.began).as_secs_f64().max(1e-9);
        let tp99 = |(durations, of): (&Cow<'_, Durations>, &HandlerStats)| {
            Some((durations.quantile_ns(0.99)?, of.measure.target.label()))
        };
        let slowest = durations.iter().zip(all).filter_map(tp99).max();
        let lost = Losses::unmeasured_of_all(all.iter().map(HandlerStats::losses));
        let mut line = format!(
            "[{:8.1} s] {calls} calls, {:.0} calls/s, lost {lost} so far",
            (now - window_began).as_secs_f64(),
            calls as f64 / length,
        );
        if let Some((tp99, name)) = slowest {
            line.push_str(&format!(", highest TP99 {:.3} us ({name})", tp99 as f64 / 1e3));
        }
        if idle > 0 {
            line.push_str(&format!(", {idle} handlers without a hit"));
        }
        line
    }

    /// Ends it and begins the next one.
    pub(super) fn close(
        &mut self,
        window_began: Instant,
        now: Instant,
        recorder: &Recorder,
    ) -> Interval {
        let mut handlers = Vec::with_capacity(self.handlers.len());
        for (handler, of) in self.handlers.iter_mut().zip(recorder.handlers()) {
            let (sure, doubtful) = handler.sure(of);
            handlers.push(IntervalStats {
                count: sure.len(),
                doubtful,
                sum_ns: sure.sum_ns(),
                p50_ns: sure.quantile_ns(0.5),
                p99_ns: sure.quantile_ns(0.99),
                max_ns: sure.max_ns(),
            });
            handler.durations.reset();
            handler.doubt.age(&of.now.books);
        }
        let start_ns = nanoseconds(self.began - window_began);
        let duration_ns = nanoseconds(now - self.began);
        self.began = now;
        Interval { start_ns, duration_ns, handlers }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::probe::Books;

    fn drained(durations: &[u64], doubtful: u64, skipped_entries: u64) -> [Drained; 1] {
        [Drained::of(durations, Books { doubtful, skipped_entries, ..Books::default() })]
    }

    /// What intervals of these durations, doubtful ones and skipped entries show, one a second.
    fn intervals(at_begin: [u64; 2], all: &[(&[u64], u64, u64)]) -> Vec<IntervalStats> {
        let began = Instant::now();
        let [doubtful, skipped] = at_begin;
        let mut recorder = Recorder::of(&["handler"], &drained(&[], doubtful, skipped));
        let mut open = Open::new(&recorder, Precision::Three, began);
        let close = |(at, (durations, doubtful, skipped)): (usize, &(&[u64], u64, u64))| {
            let drained = drained(durations, *doubtful, *skipped);
            recorder.add(&drained);
            open.add(&drained);
            let now = began + Duration::from_secs(at as u64 + 1);
            open.close(began, now, &recorder).handlers.remove(0)
        };
        all.iter().enumerate().map(close).collect()
    }

    #[test]
    fn an_interval_leaves_out_what_may_be_false_in_it() {
        let (three, long) = (&[100, 200, 300][..], &[100, 200, 9_000_000][..]);
        let all = intervals(
            [0, 0],
            &[
                (long, 0, 0),
                (long, 1, 1),
                (three, 1, 1),
                (long, 1, 1),
                (three, 3, 9),
                (&[100], 3, 9),
            ],
        );
        let figures: Vec<_> =
            all.iter().map(|of| (of.count, of.doubtful, of.sum_ns, of.max_ns)).collect();
        assert_eq!(figures[0], (3, 0, 9_000_300, Some(9_000_000)));
        assert_eq!(figures[1], (2, 1, 300, Some(200)), "an entry was skipped in it");
        assert_eq!(figures[2], (2, 1, 300, Some(200)), "or in the one before");
        assert_eq!(figures[3], (3, 0, 9_000_300, Some(9_000_000)), "but not since");
        assert_eq!(figures[4], (0, 3, 0, None), "no more than are doubtful in all");
        assert_eq!(figures[5], (0, 1, 0, None), "no more than there are");
        let calls: u64 = all.iter().map(|of| of.count + of.doubtful).sum();
        assert_eq!(calls, 16, "every call is in one interval");
    }

    /// A full buffer's losses are those of all handlers, and each has their number.
    #[test]
    fn the_line_has_the_sessions_losses_once() {
        let books = |lost, overrun| Books { lost, overrun, ..Books::default() };
        let drained = |lost, overrun| Drained::of(&[], books(lost, overrun));
        let began = Instant::now();
        let mut recorder = Recorder::of(&["one", "other"], &[drained(2, 10), drained(0, 10)]);
        let open = Open::new(&recorder, Precision::Three, began);
        recorder.add(&[drained(3, 17), drained(4, 17)]);
        let line = open.line(began, began + Duration::from_secs(1), &recorder);
        assert!(line.contains(" lost 12 so far"), "1 + 4 + 7: {line}");
    }

    #[test]
    fn many_intervals_after_a_skipped_entry_are_whole() {
        let later = [(&[100, 200][..], 50, 50); 20];
        let all = intervals([50, 50], &later);
        assert_eq!((all[0].count, all[0].doubtful), (0, 2), "the calls under way at the begin");
        for later in &all[1..] {
            assert_eq!((later.count, later.doubtful, later.max_ns), (2, 0, Some(200)));
        }
    }

    /// A start that is left over waits for a call at its place whose entry is skipped, however long that takes.
    #[test]
    fn an_entry_skipped_late_makes_a_duration_doubtful_again() {
        let calls = &[100, 9_000_000][..];
        let all = intervals([0, 0], &[(calls, 1, 5), (calls, 1, 5), (calls, 1, 5), (calls, 1, 6)]);
        let doubtful: Vec<u64> = all.iter().map(|of| of.doubtful).collect();
        assert_eq!(doubtful, [1, 1, 0, 1]);
    }
}
