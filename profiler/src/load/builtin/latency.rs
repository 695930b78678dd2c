//! Records service and response times of operations while a load runs.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use profiler_common::bucket::HIGHEST_NS;

use crate::profile::Distribution;
use crate::profile::loads::{Latency, OperationTimes};
use crate::stats::nanoseconds;

/// Running totals of one kind of time.
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

/// Records the latency of operations, of one worker or of all.
#[derive(Debug, Clone)]
pub(super) struct LatencyRecorder {
    service: Times,
    response: Option<Times>,
    /// Operations that started or were due before are warm-up.
    from: Option<Instant>,
}

impl LatencyRecorder {
    pub(super) fn new(at_a_rate: bool, from: Option<Instant>) -> Result<Self, String> {
        let response = if at_a_rate { Some(Times::new()?) } else { None };
        Ok(Self { service: Times::new()?, response, from })
    }

    /// Records one operation from `start` to `end`, which at a fixed rate was `due`.
    pub(super) fn record(&mut self, due: Option<Instant>, start: Instant, end: Instant) {
        if self.from.is_some_and(|from| due.unwrap_or(start) < from) {
            return;
        }
        self.service.record(end.duration_since(start));
        if let (Some(due), Some(response)) = (due, &mut self.response) {
            response.record(end.duration_since(due));
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

    /// 100 operations a second of 1 ms each, one of which takes a second: those behind it wait.
    #[test]
    fn a_stall_adds_to_the_response_time_of_all_operations_due_meanwhile() {
        let start = Instant::now();
        let ms = |ms: u64| start + Duration::from_millis(ms);
        let mut times = LatencyRecorder::new(true, None).unwrap();
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
        // One operation in a thousand has a long service time, one in ten a long response time.
        assert_eq!(at(&latency.service, 0.99), 1);
        let response = latency.response.unwrap();
        assert!(at(&response, 0.95) > 300, "{:?}", response.quantile_ns(0.95));
        assert_eq!(response.count, 1_000);
    }

    #[test]
    fn the_warm_up_is_left_out_and_workers_add_up() {
        let start = Instant::now();
        let after = |ns| start + Duration::from_nanos(ns);
        let mut one = LatencyRecorder::new(false, Some(after(100))).unwrap();
        one.record(None, after(50), after(5_000));
        one.record(None, after(100), after(110));
        let mut two = LatencyRecorder::new(false, Some(after(100))).unwrap();
        two.record(None, after(200), after(230));
        two.add(&one).unwrap();
        let latency = two.store().unwrap();
        let OperationTimes { count, sum_ns, min_ns, max_ns, over_range, .. } = latency.service;
        assert_eq!((count, sum_ns, min_ns, max_ns, over_range), (2, 40, Some(10), Some(30), 0));
        assert_eq!(latency.response, None);
    }
}
