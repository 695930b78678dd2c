//! A sum of distributions with their exact figures. Only buckets with calls are kept: what a sum takes in memory is explained
//! by the size of its files, whatever layouts they declare.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::super::{Distribution, EncodeError};
use super::{TooLarge, checked};

/// Durations as they are stored.
pub(super) struct Stored<'a> {
    pub(super) count: u64,
    pub(super) sum_ns: u64,
    pub(super) min_ns: Option<u64>,
    pub(super) max_ns: Option<u64>,
    pub(super) histogram: &'a Distribution,
}

/// A sum of durations.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub(super) count: u64,
    pub(super) sum_ns: u64,
    pub(super) min_ns: Option<u64>,
    pub(super) max_ns: Option<u64>,
    /// Calls, by the shortest duration of their bucket.
    buckets: BTreeMap<u64, u64>,
}

impl Sum {
    /// Adds `more`; `of` says whose they are.
    pub(super) fn add(&mut self, more: &Stored<'_>, of: &str) -> Result<(), TooLarge> {
        let what = format!("the number of calls of {of}");
        self.count = checked(self.count, more.count, &what)?;
        let what = format!("the sum of durations of {of}");
        self.sum_ns = checked(self.sum_ns, more.sum_ns, &what)?;
        self.min_ns = self.min_ns.into_iter().chain(more.min_ns).min();
        self.max_ns = self.max_ns.max(more.max_ns);
        for bucket in &more.histogram.buckets {
            // The number of all calls did not overflow, so that of none of the buckets does.
            let calls = self.buckets.entry(bucket.from_ns).or_default();
            *calls = calls.saturating_add(bucket.count);
        }
        Ok(())
    }

    /// The stored form; `scratch` is any histogram of its layout.
    pub(super) fn encode(&self, scratch: &mut Histogram<u64>) -> Result<Distribution, EncodeError> {
        if !scratch.is_empty() {
            scratch.reset();
        }
        for (value, calls) in &self.buckets {
            let recorded = scratch.record_n(*value, *calls);
            recorded.map_err(|error| EncodeError(error.to_string()))?;
        }
        Distribution::encode(scratch)
    }
}
