//! What came of a load.

use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::stats::{self, Durations, mean, nanoseconds};
use profiler_base::stop::StopReason;
use profiler_common::bucket::HIGHEST_NS;

use super::{LoadSpec, TestRuns};
use crate::Distribution;

/// What came of a load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadOutcome {
    /// How it ended.
    pub status: LoadStatus,
    /// Operations that succeeded; `None` where the load cannot know (a command).
    pub operations: Option<u64>,
    /// Operations that failed, by kind; empty is none.
    pub errors: Vec<OperationErrors>,
    /// From the start of the first operation (set-up excluded) to the end of the last, in nanoseconds.
    pub elapsed_ns: u64,
    /// Operations that succeeded per second of `elapsed_ns`; `None` where operations are unknown or
    /// no time passed.
    pub held_rate_per_s: Option<f64>,
    /// At a fixed rate: the longest delay between an operation's due time and its start, in nanoseconds.
    pub max_late_ns: Option<u64>,
    /// Latency of its operations; `None` where the load cannot know (a command).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Results of each LTP test, in the order of the list; empty for other loads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<TestRuns>,
    /// CPU time of the process that made the operations and of its children, from the first operation
    /// to the end of the last, warm-up included; `None` where the load has no process of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuTime>,
    /// What of its folder or control group could not be removed, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
}

/// CPU time in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuTime {
    /// In user mode.
    pub user_ns: u64,
    /// In the kernel.
    pub system_ns: u64,
}

impl LoadOutcome {
    /// CPU time per operation in nanoseconds, user mode and kernel together, over all operations,
    /// failed ones included; `None` where it is not known.
    pub fn cpu_ns_per_operation(&self) -> Option<f64> {
        let cpu = self.cpu?;
        let failed: u64 = self.errors.iter().map(|errors| errors.count).sum();
        mean(cpu.user_ns + cpu.system_ns, self.operations? + failed)
    }

    /// An outcome with status and elapsed time only.
    pub fn ended(status: LoadStatus, started: Instant) -> Self {
        Self { status, elapsed_ns: nanoseconds(started.elapsed()), ..Self::default() }
    }
}

/// How a load ended.
// What is worse comes later: of several runs the worst end is stored.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LoadStatus {
    /// All its work is done: the command ended with 0, or every operation was made.
    #[default]
    Completed,
    /// It was stopped before that.
    Stopped {
        /// Why.
        by: StopReason,
    },
    /// It could not do what was asked.
    Failed(LoadFailure),
}

/// Why a load failed.
#[derive(
    Debug,
    Clone,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    thiserror::Error,
    JsonSchema,
)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum LoadFailure {
    /// The command ended by itself with a code other than 0.
    #[error("the load command ended with exit code {code}")]
    ExitCode {
        /// That code.
        code: i32,
    },
    /// The command was killed by a signal that this program did not send.
    #[error("the load command was killed by signal {number} ({name})")]
    Signal {
        /// Number of the signal.
        number: i32,
        /// Its name, such as `SIGSEGV`.
        name: String,
    },
    /// The load never started.
    #[error("the load could not start: {text}")]
    CouldNotStart {
        /// What failed, and what to do.
        text: String,
    },
    /// The load started and could not go on.
    #[error("the load broke off: {text}")]
    BrokeOff {
        /// What failed, and what to do.
        text: String,
    },
}

/// Failed operations of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperationErrors {
    /// Name of the error, such as `ECONNREFUSED`.
    pub kind: String,
    /// How many operations failed that way.
    pub count: u64,
    /// Message of the first.
    pub first: String,
}

impl OperationErrors {
    /// One operation that failed.
    pub fn one(kind: impl Into<String>, text: impl Into<String>) -> Self {
        Self { kind: kind.into(), count: 1, first: text.into() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadRun {
    /// What it was.
    pub spec: LoadSpec,
    /// What came of it.
    pub outcome: LoadOutcome,
}

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
