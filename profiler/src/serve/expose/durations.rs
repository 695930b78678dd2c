//! HDR histograms of durations in the buckets of other histograms.

use profiler_base::stats::Durations;

/// Upper bounds of the classic buckets, in nanoseconds: one below each power of two from 64 ns to 8.6 s.
///
/// HDR histograms of any precision have a bucket that ends there, so no bucket straddles a bound, and each count is exact.
pub const BOUNDS_NS: [u64; 28] = {
    let mut bounds = [0; 28];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = (1 << (at + 6)) - 1;
        at += 1;
    }
    bounds
};

/// Schema of native histograms, scale of exponential ones: each power of two is cut into `2^5` buckets, which are 2.2 % wide.
/// A bucket of an HDR histogram is at most 0.1 % wide with three digits and 0.8 % with two: no finer than was measured.
pub const SCHEMA: i32 = 5;

/// Durations up to here are in the zero bucket, in seconds: those of 0 ns alone. A bound of every schema.
pub const ZERO_THRESHOLD: f64 = 1.0 / (1_u64 << 30) as f64;

/// Calls of at most each of [`BOUNDS_NS`]; the bucket `+Inf` has all calls.
pub fn classic(durations: &Durations) -> [u64; BOUNDS_NS.len()] {
    let mut counts = [0_u64; BOUNDS_NS.len()];
    for bucket in durations.histogram().iter_recorded() {
        let first = BOUNDS_NS.partition_point(|bound| *bound < bucket.value_iterated_to());
        if let Some(count) = counts.get_mut(first) {
            *count += bucket.count_at_value();
        }
    }
    let mut up_to = 0;
    counts.map(|count| {
        up_to += count;
        up_to
    })
}

/// Durations in buckets whose bounds are powers of `2^(2^-SCHEMA)`, in seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Native {
    /// Calls of 0 ns.
    pub zero: u64,
    /// Index of each bucket with calls, ascending, and their number. Bucket `i` ends at `2^(i / 2^SCHEMA)` seconds, which it
    /// includes, and begins above the end of `i - 1`.
    pub buckets: Vec<(i32, u64)>,
}

/// Counts each call as the longest of its HDR bucket, but no longer than the exact longest call. So a rank is in the bucket
/// that holds the recording's quantile; a call is at most one bucket too high, if its HDR bucket straddles a bound.
pub fn native(durations: &Durations) -> Native {
    let mut native = Native::default();
    for bucket in durations.histogram().iter_recorded() {
        let calls = bucket.count_at_value();
        let ns = bucket.value_iterated_to().min(durations.max_ns().unwrap_or(u64::MAX));
        if ns == 0 {
            native.zero = native.zero.saturating_add(calls);
            continue;
        }
        // 2^29 buckets would not overflow: there are 36 powers of two.
        let index = ((ns as f64 / 1e9).log2() * f64::from(1 << SCHEMA)).ceil() as i32;
        match native.buckets.last_mut() {
            Some((last, count)) if *last == index => *count = count.saturating_add(calls),
            _ => native.buckets.push((index, calls)),
        }
    }
    native
}
