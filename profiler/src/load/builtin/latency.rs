//! How long the operations themselves took.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use profiler_common::bucket::{HIGHEST_NS, LOWEST_NS};
use serde::{Deserialize, Serialize};

use crate::load::nanoseconds;
use crate::profile::Distribution;

/// Significant digits of these histograms; range as those of the handlers.
pub(crate) const LATENCY_DIGITS: u8 = 3;

/// Latency of a load's operations that succeeded, as the program that makes them sees it; those of
/// the warm-up are left out. In nanoseconds of the monotonic clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Latency {
    /// From the begin of each operation to its end.
    pub service: OperationTimes,
    /// At a fixed rate: from the time at which each was due to its end. An operation that had to wait
    /// for a slow one before it is seen to have waited: this is the one corrected for coordinated
    /// omission. `None` for a closed loop, where nothing is ever due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<OperationTimes>,
}

/// A distribution of times, with 3 significant digits from 1 ns to 60 s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OperationTimes {
    /// Exact number of operations.
    pub count: u64,
    /// Exact sum of their times.
    pub sum_ns: u64,
    /// Exact shortest; `None` without any.
    pub min_ns: Option<u64>,
    /// Exact longest; `None` without any.
    pub max_ns: Option<u64>,
    /// Those beyond the range, recorded in the last bucket.
    #[serde(default)]
    pub over_range: u64,
    /// All of them.
    pub histogram: Distribution,
}

impl OperationTimes {
    /// A histogram of their layout.
    pub(crate) fn empty_histogram() -> Result<Histogram<u64>, String> {
        Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, LATENCY_DIGITS)
            .map_err(|error| format!("its histogram: {error}"))
    }

    /// Exact average in nanoseconds; `None` without an operation.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        crate::stats::mean(self.sum_ns, self.count)
    }

    /// Time in nanoseconds that the share `quantile` (0 to 1) did not exceed; never above the exact
    /// longest. `None` without an operation.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        crate::stats::quantile_within(&self.histogram.buckets, quantile, self.max_ns)
    }
}

/// Times as they are recorded.
#[derive(Debug, Clone)]
struct Times {
    histogram: Histogram<u64>,
    sum_ns: u64,
    min_ns: Option<u64>,
    max_ns: Option<u64>,
    over_range: u64,
}

impl Times {
    fn new() -> Result<Self, String> {
        let histogram = OperationTimes::empty_histogram()?;
        Ok(Self { histogram, sum_ns: 0, min_ns: None, max_ns: None, over_range: 0 })
    }

    fn record(&mut self, time: Duration) {
        let ns = nanoseconds(time);
        self.histogram.saturating_record(ns);
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.min_ns = Some(self.min_ns.map_or(ns, |min| min.min(ns)));
        self.max_ns = self.max_ns.max(Some(ns));
        self.over_range += u64::from(ns > HIGHEST_NS);
    }

    fn add(&mut self, other: &Self) -> Result<(), String> {
        self.histogram.add(&other.histogram).map_err(|error| error.to_string())?;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.min_ns = [self.min_ns, other.min_ns].into_iter().flatten().min();
        self.max_ns = self.max_ns.max(other.max_ns);
        self.over_range += other.over_range;
        Ok(())
    }

    fn store(&self) -> Result<OperationTimes, String> {
        Ok(OperationTimes {
            count: self.histogram.len(),
            sum_ns: self.sum_ns,
            min_ns: self.min_ns,
            max_ns: self.max_ns,
            over_range: self.over_range,
            histogram: Distribution::encode(&self.histogram).map_err(|error| error.to_string())?,
        })
    }
}

/// Records the operations of one worker, or of all of them.
#[derive(Debug, Clone)]
pub(super) struct Clockwork {
    service: Times,
    response: Option<Times>,
    /// What began or was due before is warm-up.
    from: Option<Instant>,
}

impl Clockwork {
    pub(super) fn new(at_a_rate: bool, from: Option<Instant>) -> Result<Self, String> {
        let response = if at_a_rate { Some(Times::new()?) } else { None };
        Ok(Self { service: Times::new()?, response, from })
    }

    /// Records one operation that was `due` (at a rate), `began` and has `ended`.
    pub(super) fn record(&mut self, due: Option<Instant>, began: Instant, ended: Instant) {
        let counts_from = due.unwrap_or(began);
        if self.from.is_some_and(|from| counts_from < from) {
            return;
        }
        self.service.record(ended.duration_since(began));
        if let (Some(due), Some(response)) = (due, &mut self.response) {
            response.record(ended.duration_since(due));
        }
    }

    pub(super) fn add(&mut self, other: &Self) -> Result<(), String> {
        self.service.add(&other.service)?;
        if let (Some(mine), Some(other)) = (&mut self.response, &other.response) {
            mine.add(other)?;
        }
        Ok(())
    }

    pub(super) fn store(&self) -> Result<Latency, String> {
        let response = self.response.as_ref().map(Times::store).transpose()?;
        Ok(Latency { service: self.service.store()?, response })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 operations a second of 1 ms each, one of which takes a second: those behind it waited.
    #[test]
    fn a_stall_is_felt_by_all_that_were_due_meanwhile() {
        let start = Instant::now();
        let ms = |ms: u64| start + Duration::from_millis(ms);
        let mut times = Clockwork::new(true, None).unwrap();
        let mut free = 0;
        for n in 0..1_000_u64 {
            let began = free.max(n * 10);
            free = began + if n == 500 { 1_000 } else { 1 };
            times.record(Some(ms(n * 10)), ms(began), ms(free));
        }
        let latency = times.store().unwrap();
        let at = |times: &OperationTimes, q| times.quantile_ns(q).unwrap() / 1_000_000;
        assert_eq!(latency.service.count, 1_000);
        assert_eq!(latency.service.max_ns, Some(1_000_000_000));
        // One in a thousand by the service time; one in ten by what the application feels.
        assert_eq!(at(&latency.service, 0.99), 1);
        let response = latency.response.unwrap();
        assert!(at(&response, 0.95) > 300, "{:?}", response.quantile_ns(0.95));
        assert_eq!(response.count, 1_000);
    }

    #[test]
    fn the_warm_up_is_left_out_and_workers_add_up() {
        let start = Instant::now();
        let after = |ns| start + Duration::from_nanos(ns);
        let mut one = Clockwork::new(false, Some(after(100))).unwrap();
        one.record(None, after(50), after(5_000));
        one.record(None, after(100), after(110));
        let mut two = Clockwork::new(false, Some(after(100))).unwrap();
        two.record(None, after(200), after(230));
        two.add(&one).unwrap();
        let latency = two.store().unwrap();
        let OperationTimes { count, sum_ns, min_ns, max_ns, over_range, .. } = latency.service;
        assert_eq!((count, sum_ns, min_ns, max_ns, over_range), (2, 40, Some(10), Some(30), 0));
        assert_eq!(latency.response, None);
    }
}
