//! The pieces that a window is cut into.

use std::borrow::Cow;
use std::time::Instant;

use hdrhistogram::Histogram;

use super::{internal, nanoseconds};
use crate::error::Failure;
use crate::probe::{Drained, Precision, doubtful::Durations};
use crate::profile::{Interval, IntervalStats};
use crate::target::Target;

/// The interval that is being measured.
pub(super) struct Open {
    began: Instant,
    handlers: Vec<OfInterval>,
    lost: u64,
}

/// One handler in it.
#[derive(Clone)]
struct OfInterval {
    histogram: Histogram<u64>,
    sum_ns: u64,
    max_ns: Option<u64>,
    /// Durations that are doubtful since the probes were attached: each may lie in this interval.
    doubtful: u64,
}

impl OfInterval {
    /// Without what is doubtful.
    fn sure(&self) -> Cow<'_, Self> {
        if self.doubtful == 0 {
            return Cow::Borrowed(self);
        }
        let mut sure = self.clone();
        let (histogram, sum_ns) = (&mut sure.histogram, &mut sure.sum_ns);
        Durations { histogram, sum_ns, max_ns: &mut sure.max_ns }.withhold(self.doubtful);
        Cow::Owned(sure)
    }

    /// Never above the longest call, though its bucket may reach further.
    fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        self.max_ns.map(|max| self.histogram.value_at_quantile(quantile).min(max))
    }
}

impl Open {
    pub(super) fn new(
        handlers: usize,
        precision: Precision,
        began: Instant,
    ) -> Result<Self, Failure> {
        let empty = precision.histogram().map_err(|error| internal(&error.to_string()))?;
        let empty = OfInterval { histogram: empty, sum_ns: 0, max_ns: None, doubtful: 0 };
        Ok(Self { began, handlers: vec![empty; handlers], lost: 0 })
    }

    pub(super) fn add(&mut self, drained: &[Drained]) -> Result<(), Failure> {
        self.lost = 0;
        for (handler, drained) in self.handlers.iter_mut().zip(drained) {
            let added = handler.histogram.add(&drained.histogram);
            added.map_err(|error| internal(&error.to_string()))?;
            handler.sum_ns += drained.sum_ns;
            handler.max_ns = handler.max_ns.max(drained.max_ns);
            handler.doubtful = drained.books.doubtful;
            self.lost += drained.books.lost
                + drained.books.doubtful
                + drained.books.missed.max(drained.books.unpaired_exits)
                + drained.books.overrun
                + drained.books.backwards;
        }
        Ok(())
    }

    /// One line on the interval: calls, their rate, the handler with the highest TP99, losses.
    pub(super) fn line(&self, window_began: Instant, now: Instant, targets: &[&Target]) -> String {
        let handlers: Vec<_> = self.handlers.iter().map(OfInterval::sure).collect();
        let calls: u64 = handlers.iter().map(|handler| handler.histogram.len()).sum();
        let idle = self.handlers.iter().filter(|handler| handler.histogram.is_empty()).count();
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
            let handler = handler.sure();
            IntervalStats {
                count: handler.histogram.len(),
                sum_ns: handler.sum_ns,
                p50_ns: handler.quantile_ns(0.5),
                p99_ns: handler.quantile_ns(0.99),
                max_ns: handler.max_ns,
            }
        };
        let interval = Interval {
            start_ns: nanoseconds(self.began - window_began),
            duration_ns: nanoseconds(now - self.began),
            handlers: self.handlers.iter().map(statistics).collect(),
        };
        for handler in &mut self.handlers {
            handler.histogram.reset();
            handler.sum_ns = 0;
            handler.max_ns = None;
        }
        self.began = now;
        interval
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::probe::Books;

    #[test]
    fn an_interval_leaves_out_what_is_doubtful_so_far() {
        let began = Instant::now();
        let drained = |durations: &[u64], doubtful| {
            let mut histogram = Precision::Three.histogram().unwrap();
            durations.iter().for_each(|ns| histogram.record(*ns).unwrap());
            Drained {
                histogram,
                sum_ns: durations.iter().sum(),
                min_ns: durations.iter().min().copied(),
                max_ns: durations.iter().max().copied(),
                over_range: 0,
                self_time: None,
                books: Books { doubtful, ..Books::default() },
            }
        };
        let mut open = Open::new(1, Precision::Three, began).unwrap();
        let mut after = |durations: &[u64], doubtful, seconds| {
            open.add(&[drained(durations, doubtful)]).unwrap();
            let now = began + Duration::from_secs(seconds);
            open.close(began, now).handlers.remove(0)
        };
        let all = after(&[100, 200, 9_000_000], 0, 1);
        assert_eq!((all.count, all.sum_ns, all.max_ns), (3, 9_000_300, Some(9_000_000)));
        let fewer = after(&[100, 200, 9_000_000], 1, 2);
        assert_eq!((fewer.count, fewer.sum_ns, fewer.max_ns), (2, 300, Some(200)));
        let later = after(&[100, 200], 1, 3);
        assert_eq!((later.count, later.p99_ns, later.max_ns), (1, Some(100), Some(100)));
        let none = after(&[100], 5, 4);
        assert_eq!((none.count, none.sum_ns, none.p50_ns, none.max_ns), (0, 0, None, None));
    }
}
