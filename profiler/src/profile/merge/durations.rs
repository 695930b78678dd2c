//! A sum of distributions with their exact figures.

use hdrhistogram::Histogram;

use super::super::{Distribution, EncodeError};
use super::{TooLarge, checked};

/// Durations of all sources.
#[derive(Debug)]
pub(super) struct Durations {
    count: u64,
    sum_ns: u64,
    min_ns: Option<u64>,
    max_ns: Option<u64>,
    histogram: Histogram<u64>,
}

/// What is stored of them.
pub(super) struct Stored {
    pub(super) count: u64,
    pub(super) sum_ns: u64,
    pub(super) min_ns: Option<u64>,
    pub(super) max_ns: Option<u64>,
    pub(super) histogram: Distribution,
}

impl Durations {
    /// None so far; `empty` has the layout that all of them share.
    pub(super) fn new(empty: Histogram<u64>) -> Self {
        Self { count: 0, sum_ns: 0, min_ns: None, max_ns: None, histogram: empty }
    }

    /// Adds those of one source; `of` says whose they are.
    pub(super) fn add(&mut self, more: &Stored, of: &str) -> Result<(), TooLarge> {
        self.count = checked(self.count, more.count, &format!("the number of calls of {of}"))?;
        self.sum_ns = checked(self.sum_ns, more.sum_ns, &format!("the sum of durations of {of}"))?;
        self.min_ns = [self.min_ns, more.min_ns].into_iter().flatten().min();
        self.max_ns = self.max_ns.max(more.max_ns);
        for bucket in &more.histogram.buckets {
            // The number of all calls did not overflow, so that of none of the buckets does.
            let recorded = self.histogram.record_n(bucket.from_ns, bucket.count);
            recorded.map_err(|error| TooLarge(format!("the histogram of {of} ({error})")))?;
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Stored, EncodeError> {
        let Self { count, sum_ns, min_ns, max_ns, histogram } = self;
        Ok(Stored { count, sum_ns, min_ns, max_ns, histogram: Distribution::encode(&histogram)? })
    }
}
