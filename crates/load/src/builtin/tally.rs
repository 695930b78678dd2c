//! What the workers of a built-in load did: operations, their service and response times, errors.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use profiler_base::stats::{Durations, nanoseconds};
use profiler_recording::loads::{LoadStatus, OperationErrors, OperationTimes};

use super::BuiltinLoad;

/// The monotonic clock, which all processes share.
pub(crate) fn monotonic_now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// What one worker did, or all of them together.
pub(super) struct Tally {
    pub(super) operations: u64,
    /// Service times.
    pub(super) service: Durations,
    /// Response times, at a fixed rate.
    pub(super) response: Option<Durations>,
    /// Operations that started or were due before are warm-up, and have no times here.
    from: Option<Instant>,
    /// By kind.
    pub(super) errors: BTreeMap<String, OperationErrors>,
    /// The longest delay between the due time of an operation and its start.
    pub(super) max_late: Duration,
    /// The end of the last operation, or of the wait for the next.
    pub(super) last: Option<Instant>,
    pub(super) status: LoadStatus,
}

impl Tally {
    pub(super) fn new(load: &BuiltinLoad) -> Self {
        let from = load.measured_from;
        Self {
            operations: 0,
            service: OperationTimes::none(),
            response: load.rate.map(|_| OperationTimes::none()),
            from: from.map(|from| Instant::now() + from.saturating_sub(monotonic_now())),
            errors: BTreeMap::new(),
            max_late: Duration::ZERO,
            last: None,
            status: LoadStatus::Completed,
        }
    }

    /// Records the times of one operation from `start` to `end`, which at a fixed rate was `due`.
    pub(super) fn record(&mut self, due: Option<Instant>, start: Instant, end: Instant) {
        if self.from.is_some_and(|from| due.unwrap_or(start) < from) {
            return;
        }
        self.service.record(nanoseconds(end.duration_since(start)));
        if let (Some(due), Some(response)) = (due, &mut self.response) {
            response.record(nanoseconds(end.duration_since(due)));
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.service += &other.service;
        if let (Some(mine), Some(other)) = (&mut self.response, &other.response) {
            *mine += other;
        }
        self.operations += other.operations;
        self.max_late = self.max_late.max(other.max_late);
        self.last = self.last.max(other.last);
        other.errors.into_values().for_each(|errors| self.add_errors(errors));
        // The worst end is kept.
        if other.status > self.status {
            self.status = other.status;
        }
    }

    pub(super) fn add_errors(&mut self, errors: OperationErrors) {
        match self.errors.get_mut(&errors.kind) {
            Some(known) => known.count += errors.count,
            None => drop(self.errors.insert(errors.kind.clone(), errors)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_recording::loads::BuiltinKind;

    fn quantile(times: &Durations, quantile: f64) -> u64 {
        times.quantile_ns(quantile).unwrap() / 1_000_000
    }

    /// 100 operations a second of 1 ms each, one of which takes a second: those behind it wait.
    #[test]
    fn a_stall_adds_to_the_response_time_of_all_operations_due_meanwhile() {
        let start = Instant::now();
        let ms = |ms: u64| start + Duration::from_millis(ms);
        let rate = Some("100/s".parse().unwrap());
        let load = BuiltinLoad { rate, ..BuiltinLoad::new(BuiltinKind::Getppid) };
        let mut times = Tally::new(&load);
        let mut free = 0;
        for n in 0..1_000_u64 {
            let began = free.max(n * 10);
            free = began + if n == 500 { 1_000 } else { 1 };
            times.record(Some(ms(n * 10)), ms(began), ms(free));
        }
        assert_eq!(times.service.len(), 1_000);
        assert_eq!(times.service.max_ns(), Some(1_000_000_000));
        // One operation in a thousand has a long service time, one in ten a long response time.
        assert_eq!(quantile(&times.service, 0.99), 1);
        let response = times.response.unwrap();
        assert!(quantile(&response, 0.95) > 300, "{:?}", response.quantile_ns(0.95));
        assert_eq!(response.len(), 1_000);
    }

    #[test]
    fn the_warm_up_is_left_out_and_workers_add_up() {
        let measured_from = Some(monotonic_now() + Duration::from_secs(100));
        let load = BuiltinLoad { measured_from, ..BuiltinLoad::new(BuiltinKind::Getppid) };
        let (mut one, mut two) = (Tally::new(&load), Tally::new(&load));
        let start = one.from.unwrap().max(two.from.unwrap());
        let after = |ns| start + Duration::from_nanos(ns);
        one.record(None, start - Duration::from_secs(1), after(5_000));
        one.record(None, start, after(10));
        two.record(None, after(100), after(130));
        two.add(one);
        let Tally { service, response, .. } = two;
        assert_eq!((service.len(), service.sum_ns(), service.over_range()), (2, 40, 0));
        assert_eq!((service.min_ns(), service.max_ns()), (Some(10), Some(30)));
        assert!(response.is_none());
    }
}
