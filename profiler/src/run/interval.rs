//! The pieces that a window is cut into.

use std::borrow::Cow;
use std::time::Instant;

use super::{Error, internal};
use crate::kernel::target::Target;
use crate::probe::{Books, Drained, Precision};
use crate::recording::measure::Losses;
use crate::recording::{Interval, IntervalStats};
use crate::stats::{Durations, nanoseconds};

/// The interval that is being measured.
pub(super) struct Open {
    began: Instant,
    handlers: Vec<OfInterval>,
    lost: u64,
}

/// One handler in it.
#[derive(Clone)]
struct OfInterval {
    durations: Durations,
    /// When the window began.
    before: Books,
    /// Durations that are doubtful since the probes were attached.
    doubtful: u64,
    /// Entries that the kernel skipped since then.
    skipped: u64,
    /// How many that were when the interval before the last ended, and when the last did.
    skipped_by: [u64; 2],
}

impl OfInterval {
    /// Without what is doubtful, and how much that is. A false duration ends with a call whose entry was
    /// skipped: in this interval, or in the one before if it was under way in between. The start that it
    /// took may be of any time.
    fn sure(&self) -> (Cow<'_, Durations>, u64) {
        let doubtful = self.doubtful.min(self.skipped.saturating_sub(self.skipped_by[0]));
        if doubtful == 0 {
            return (Cow::Borrowed(&self.durations), 0);
        }
        let mut sure = self.durations.clone();
        let withheld = sure.withhold(doubtful);
        (Cow::Owned(sure), withheld)
    }
}

impl Open {
    /// The first interval of a window that `at_begin` was drained for: that what was skipped before counts
    /// as the interval before.
    pub(super) fn new(
        at_begin: &[Drained],
        precision: Precision,
        began: Instant,
    ) -> Result<Self, Error> {
        let empty = precision.durations().map_err(|error| internal(&error.to_string()))?;
        let handler = |drained: &Drained| OfInterval {
            durations: empty.clone(),
            before: drained.books,
            doubtful: drained.books.doubtful,
            skipped: drained.books.skipped_entries,
            skipped_by: [0, drained.books.skipped_entries],
        };
        Ok(Self { began, handlers: at_begin.iter().map(handler).collect(), lost: 0 })
    }

    pub(super) fn add(&mut self, drained: &[Drained]) -> Result<(), Error> {
        for (handler, drained) in self.handlers.iter_mut().zip(drained) {
            let added = handler.durations.add(&drained.durations);
            added.map_err(|error| internal(&error.to_string()))?;
            handler.doubtful = drained.books.doubtful;
            handler.skipped = drained.books.skipped_entries;
        }
        let losses = self.handlers.iter().zip(drained).map(|(handler, drained)| Losses {
            doubtful: handler.doubtful,
            ..drained.books.losses_since(&handler.before)
        });
        self.lost = Losses::unmeasured_of_all(losses);
        Ok(())
    }

    /// One line on the interval: calls, their rate, the handler with the highest TP99, losses.
    pub(super) fn line(&self, window_began: Instant, now: Instant, targets: &[&Target]) -> String {
        let handlers: Vec<_> = self.handlers.iter().map(|handler| handler.sure().0).collect();
        let calls: u64 = handlers.iter().map(|handler| handler.len()).sum();
        let idle = self.handlers.iter().filter(|handler| handler.durations.is_empty()).count();
        let length = (now - self.began).as_secs_f64().max(1e-9);
        let slowest = handlers
            .iter()
            .zip(targets)
            .filter_map(|(handler, target)| Some((handler.quantile_ns(0.99)?, target.label())))
            .max();
        let mut line = format!(
            "[{:8.1} s] {calls} calls, {:.0} calls/s, lost {} so far",
            (now - window_began).as_secs_f64(),
            calls as f64 / length,
            self.lost,
        );
        if let Some((tp99, name)) = slowest {
            line.push_str(&format!(", highest TP99 {:.3} us ({name})", tp99 as f64 / 1e3));
        }
        if idle > 0 {
            line.push_str(&format!(", {idle} handlers without a hit"));
        }
        line
    }

    pub(super) fn close(&mut self, window_began: Instant, now: Instant) -> Interval {
        let statistics = |handler: &OfInterval| {
            let (handler, doubtful) = handler.sure();
            IntervalStats {
                count: handler.len(),
                doubtful,
                sum_ns: handler.sum_ns(),
                p50_ns: handler.quantile_ns(0.5),
                p99_ns: handler.quantile_ns(0.99),
                max_ns: handler.max_ns(),
            }
        };
        let interval = Interval {
            start_ns: nanoseconds(self.began - window_began),
            duration_ns: nanoseconds(now - self.began),
            handlers: self.handlers.iter().map(statistics).collect(),
        };
        for handler in &mut self.handlers {
            handler.durations.reset();
            handler.skipped_by = [handler.skipped_by[1], handler.skipped];
        }
        self.began = now;
        interval
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn drained(durations: &[u64], doubtful: u64, skipped_entries: u64) -> [Drained; 1] {
        [Drained::of(durations, Books { doubtful, skipped_entries, ..Books::default() })]
    }

    /// What intervals of these durations, doubtful ones and skipped entries show, one a second.
    fn intervals(at_begin: [u64; 2], all: &[(&[u64], u64, u64)]) -> Vec<IntervalStats> {
        let began = Instant::now();
        let [doubtful, skipped] = at_begin;
        let mut open =
            Open::new(&drained(&[], doubtful, skipped), Precision::Three, began).unwrap();
        let close = |(at, (durations, doubtful, skipped)): (usize, &(&[u64], u64, u64))| {
            open.add(&drained(durations, *doubtful, *skipped)).unwrap();
            let now = began + Duration::from_secs(at as u64 + 1);
            open.close(began, now).handlers.remove(0)
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
        let mut open =
            Open::new(&[drained(2, 10), drained(0, 10)], Precision::Three, began).unwrap();
        open.add(&[drained(3, 17), drained(4, 17)]).unwrap();
        let line = open.line(began, began + Duration::from_secs(1), &[]);
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
