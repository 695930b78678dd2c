//! Statistics of durations and of runs: pure functions.

mod block;
mod bootstrap;
mod bucket;
mod durations;
mod holm;
mod rank;
mod samples;

pub use block::{Block, ends, median, spread};
pub use bootstrap::{Change, change, level};
pub use bucket::Bucket;
pub use durations::Durations;
pub use holm::adjust;
pub use rank::{RankTest, rank_test, smallest_p};
pub use samples::{for_a_gate, for_an_exact_gate};

/// Whole nanoseconds of a duration; at most 2^64 - 1, which is 584 years.
pub fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Mean in nanoseconds; `None` if `count` is 0.
pub fn mean(sum_ns: u64, count: u64) -> Option<f64> {
    // Both lose bits beyond 2^53, which is far below the histogram's own precision.
    (count > 0).then(|| sum_ns as f64 / count as f64)
}

/// The nearest rank of `quantile` among `count` sorted values, from 1: the smallest rank whose share of
/// the values is at least `quantile`. No interpolation.
///
/// `quantile` is clamped to 0 to 1, NaN to 0. `None` if `count` is 0.
pub fn nearest_rank(count: u64, quantile: f64) -> Option<u64> {
    if count == 0 {
        return None;
    }
    if quantile >= 1.0 {
        return Some(count);
    }
    // In binary, 0.07 * 100 is a little above 7. The next lower number keeps the rank at 7.
    let product = (quantile.max(0.0) * count as f64).next_down();
    Some((product.ceil() as u64).clamp(1, count))
}

/// Nearest-rank quantile in nanoseconds, 0.99 for TP99: the upper end of its bucket (HdrHistogram's highest equivalent
/// value), but at most `max_ns`, the exact maximum. `None` without values.
///
/// The exact value at that rank is lower by less than the width of the bucket: 1/1000 of the value at
/// three significant digits, 1/100 at two.
pub fn quantile(buckets: &[Bucket], quantile: f64, max_ns: Option<u64>) -> Option<u64> {
    let total = buckets.iter().fold(0_u64, |sum, bucket| sum.saturating_add(bucket.count));
    let upper_ends = buckets.iter().map(|bucket| (bucket.to_ns, bucket.count));
    let value = at_rank(upper_ends, nearest_rank(total, quantile)?)?;
    Some(max_ns.map_or(value, |max| value.min(max)))
}

/// The value of this rank, from 1, of ascending ones, each with how often it occurs; `None` beyond the last.
pub fn at_rank(values: impl IntoIterator<Item = (u64, u64)>, rank: u64) -> Option<u64> {
    let mut seen = 0_u64;
    values.into_iter().find_map(|(value, times)| {
        seen = seen.saturating_add(times);
        (seen >= rank).then_some(value)
    })
}

/// Mean of values, each with how often it occurs; `None` without one.
pub fn mean_of_counts(values: &[(u64, u64)]) -> Option<f64> {
    let (sum, total) = values.iter().fold((0.0, 0.0), |(sum, total), (value, times)| {
        (sum + *value as f64 * *times as f64, total + *times as f64)
    });
    (total > 0.0).then(|| sum / total)
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_mean_has_every_value_in_it() {
        assert_eq!(mean_of_counts(&[]), None);
        assert_eq!(mean_of_counts(&[(7, 3)]), Some(7.0));
        assert_eq!(mean_of_counts(&[(5_000, 800), (25_000, 200)]), Some(9_000.0));
    }

    #[test]
    fn ranks() {
        assert_eq!(nearest_rank(0, 0.5), None);
        assert_eq!(nearest_rank(1, 0.0), Some(1));
        assert_eq!(nearest_rank(1, 1.0), Some(1));
        assert_eq!(nearest_rank(100, 0.90), Some(90));
        assert_eq!(nearest_rank(100, 0.95), Some(95));
        assert_eq!(nearest_rank(100, 0.99), Some(99));
        assert_eq!(nearest_rank(100, 0.07), Some(7));
        assert_eq!(nearest_rank(101, 0.99), Some(100));
        assert_eq!(nearest_rank(4092, 0.99), Some(4052));
        assert_eq!(nearest_rank(10, f64::NAN), Some(1));
        assert_eq!(nearest_rank(10, 7.0), Some(10));
        assert_eq!(nearest_rank(u64::MAX, 1.0), Some(u64::MAX));
    }

    #[test]
    fn means() {
        assert_eq!(mean(0, 0), None);
        assert_eq!(mean(10, 4), Some(2.5));
    }

    proptest! {
        #[test]
        fn agrees_with_the_sorted_values(
            mut values in prop::collection::vec(0..=60_000_000_000_u64, 1..200),
            q in 0.0..=1.0_f64,
        ) {
            let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("bounds");
            for &value in &values {
                histogram.record(value).expect("in range");
            }
            values.sort_unstable();
            let buckets: Vec<Bucket> = histogram
                .iter_recorded()
                .map(|step| Bucket {
                    from_ns: histogram.lowest_equivalent(step.value_iterated_to()),
                    to_ns: histogram.highest_equivalent(step.value_iterated_to()),
                    count: step.count_at_value(),
                })
                .collect();
            for q in [q, 0.5, 0.9, 0.95, 0.99, 1.0] {
                let rank = nearest_rank(values.len() as u64, q).expect("not empty");
                let exact = values[rank as usize - 1];
                let found = quantile(&buckets, q, None).expect("not empty");
                prop_assert_eq!(found, histogram.highest_equivalent(exact));
                prop_assert!(found - exact <= exact / 1000);
            }
        }
    }
}
