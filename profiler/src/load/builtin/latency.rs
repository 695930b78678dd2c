//! Records service and response times of operations while a load runs.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use crate::recording::loads::{Latency, OperationTimes};
use crate::stats::{Durations, nanoseconds};

/// The monotonic clock, which all processes share.
pub(in crate::load) fn monotonic_now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// Records the latency of operations, of one worker or of all.
#[derive(Debug, Clone)]
pub(super) struct LatencyRecorder {
    service: Durations,
    response: Option<Durations>,
    /// Operations that started or were due before are warm-up.
    from: Option<Instant>,
}

impl LatencyRecorder {
    /// Without what starts or is due before `from`, a time of the monotonic clock.
    pub(super) fn new(at_a_rate: bool, from: Option<Duration>) -> Self {
        let from = from.map(|from| Instant::now() + from.saturating_sub(monotonic_now()));
        let response = at_a_rate.then(OperationTimes::none);
        Self { service: OperationTimes::none(), response, from }
    }

    /// Records one operation from `start` to `end`, which at a fixed rate was `due`.
    pub(super) fn record(&mut self, due: Option<Instant>, start: Instant, end: Instant) {
        if self.from.is_some_and(|from| due.unwrap_or(start) < from) {
            return;
        }
        self.service.record(nanoseconds(end.duration_since(start)));
        if let (Some(due), Some(response)) = (due, &mut self.response) {
            response.record(nanoseconds(end.duration_since(due)));
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.service += &other.service;
        if let (Some(mine), Some(other)) = (&mut self.response, &other.response) {
            *mine += other;
        }
    }

    pub(super) fn store(&self) -> Latency {
        let response = self.response.as_ref().map(OperationTimes::of);
        Latency { service: OperationTimes::of(&self.service), response }
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
        let mut times = LatencyRecorder::new(true, None);
        let mut free = 0;
        for n in 0..1_000_u64 {
            let began = free.max(n * 10);
            free = began + if n == 500 { 1_000 } else { 1 };
            times.record(Some(ms(n * 10)), ms(began), ms(free));
        }
        let latency = times.store();
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
        let from = monotonic_now() + Duration::from_secs(100);
        let mut one = LatencyRecorder::new(false, Some(from));
        let mut two = one.clone();
        let start = one.from.unwrap();
        let after = |ns| start + Duration::from_nanos(ns);
        one.record(None, start - Duration::from_nanos(50), after(5_000));
        one.record(None, start, after(10));
        two.record(None, after(100), after(130));
        two.add(&one);
        let latency = two.store();
        let OperationTimes { count, sum_ns, min_ns, max_ns, over_range, .. } = latency.service;
        assert_eq!((count, sum_ns, min_ns, max_ns, over_range), (2, 40, Some(10), Some(30), 0));
        assert_eq!(latency.response, None);
    }
}
