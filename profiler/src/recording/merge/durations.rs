//! A sum of distributions with their exact figures.

use super::super::Distribution;
use super::{TooLarge, checked};
use crate::stats::Durations;

/// Durations as they are stored.
pub(super) struct Stored<'a> {
    pub(super) count: u64,
    pub(super) sum_ns: u64,
    pub(super) min_ns: Option<u64>,
    pub(super) max_ns: Option<u64>,
    pub(super) histogram: &'a Distribution,
}

impl Stored<'_> {
    /// Adds them to `sum`; `of` says whose they are.
    pub(super) fn add_to(&self, sum: &mut Durations, of: &str) -> Result<(), TooLarge> {
        checked(sum.len(), self.count, &format!("the number of calls of {of}"))?;
        checked(sum.sum_ns(), self.sum_ns, &format!("the sum of durations of {of}"))?;
        let (min_ns, max_ns) = (self.min_ns.unwrap_or(u64::MAX), self.max_ns.unwrap_or(0));
        sum.add_exact(self.sum_ns, min_ns, max_ns, 0);
        for bucket in &self.histogram.buckets {
            // The number of all calls did not overflow, so that of none of the buckets does.
            let recorded = sum.record_bucket(bucket.from_ns, bucket.count);
            recorded.map_err(|error| TooLarge(format!("the histogram of {of} ({error})")))?;
        }
        Ok(())
    }
}
