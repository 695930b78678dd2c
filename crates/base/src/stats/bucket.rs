//! A bucket of a histogram of durations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One bucket: durations of `from_ns` to `to_ns`, both included. In JSON `[from, to, count]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(with = "[u64; 3]")]
#[serde(from = "[u64; 3]", into = "[u64; 3]")]
pub struct Bucket {
    /// Shortest duration that falls into it, in nanoseconds.
    pub from_ns: u64,
    /// Longest duration that falls into it, in nanoseconds.
    pub to_ns: u64,
    /// Number of durations in it.
    pub count: u64,
}

impl From<[u64; 3]> for Bucket {
    fn from([from_ns, to_ns, count]: [u64; 3]) -> Self {
        Self { from_ns, to_ns, count }
    }
}

impl From<Bucket> for [u64; 3] {
    fn from(bucket: Bucket) -> Self {
        [bucket.from_ns, bucket.to_ns, bucket.count]
    }
}
