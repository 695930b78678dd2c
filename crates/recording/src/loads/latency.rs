//! Latency of a load's operations, as it is stored.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::stats::{self, Durations, mean};
use profiler_common::bucket::HIGHEST_NS;

use crate::Distribution;

/// Significant digits of these histograms; range as those of the handlers.
pub(crate) const LATENCY_DIGITS: u8 = 3;

/// Latency of a load's successful operations, measured by the program that makes them, without the
/// warm-up. In nanoseconds of the monotonic clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// Service time: from the start of each operation to its end.
    pub service: OperationTimes,
    /// Response time: at a fixed rate, from the time at which each operation was due to its end. It
    /// includes the wait for a slow operation before it, which corrects for coordinated omission.
    /// `None` for a closed loop, where nothing is ever due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<OperationTimes>,
}

/// A distribution of times, with 3 significant digits from 1 ns to 60 s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OperationTimes {
    /// Exact number of operations.
    pub count: u64,
    /// Exact sum of their times.
    pub sum_ns: u64,
    /// Exact shortest; `None` without any.
    pub min_ns: Option<u64>,
    /// Exact longest; `None` without any.
    pub max_ns: Option<u64>,
    /// Times beyond the range, recorded in the last bucket.
    pub over_range: u64,
    /// All times.
    pub histogram: Distribution,
}

impl OperationTimes {
    /// No times, in the layout of [`OperationTimes::histogram`].
    pub fn none() -> Durations {
        Durations::of_digits(LATENCY_DIGITS, HIGHEST_NS)
    }

    /// The stored form.
    pub fn of(times: &Durations) -> Self {
        Self {
            count: times.len(),
            sum_ns: times.sum_ns(),
            min_ns: times.min_ns(),
            max_ns: times.max_ns(),
            over_range: times.over_range(),
            histogram: Distribution::of(times.histogram()),
        }
    }

    /// Exact average in nanoseconds; `None` without an operation.
    pub fn mean_ns(&self) -> Option<f64> {
        mean(self.sum_ns, self.count)
    }

    /// Quantile (0 to 1) in nanoseconds, at most the exact longest; `None` without an operation.
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        stats::quantile(&self.histogram.buckets, quantile, self.max_ns)
    }
}
