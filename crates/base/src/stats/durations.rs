//! Measured durations: an HDR histogram with exact sum, minimum and maximum.

use std::borrow::Cow;
use std::ops::AddAssign;

use hdrhistogram::{Histogram, RecordError};

use profiler_common::bucket::{HIGHEST_NS, LOWEST_NS};

/// Durations in nanoseconds: to the histogram's precision, with exact sum, minimum and maximum.
#[derive(Debug, Clone)]
pub struct Durations {
    histogram: Histogram<u64>,
    sum_ns: u64,
    /// `u64::MAX` without a duration, and `max_ns` is 0 then: recording does not have to ask.
    min_ns: u64,
    max_ns: u64,
    over_range: u64,
}

impl Durations {
    /// None so far; `empty` has the layout.
    pub fn new(empty: Histogram<u64>) -> Self {
        Self { histogram: empty, sum_ns: 0, min_ns: u64::MAX, max_ns: 0, over_range: 0 }
    }

    /// None so far, to so many significant digits (2 or 3) from 1 ns to `highest`.
    #[expect(clippy::expect_used, reason = "bounds and digits that the histogram takes")]
    pub fn of_digits(digits: u8, highest: u64) -> Self {
        let empty = Histogram::new_with_bounds(LOWEST_NS, highest, digits);
        Self::new(empty.expect("constants"))
    }

    /// The histogram grows from here on as far as its durations need.
    pub fn growing(mut self) -> Self {
        self.histogram.auto(true);
        self
    }

    /// Takes all durations away.
    pub fn reset(&mut self) {
        self.histogram.reset();
        (self.sum_ns, self.min_ns, self.max_ns, self.over_range) = (0, u64::MAX, 0, 0);
    }

    /// Records one duration; in the last bucket if it is beyond [`HIGHEST_NS`].
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.add_exact(ns, ns, ns, u64::from(ns > HIGHEST_NS));
        self.histogram.saturating_record(ns.min(HIGHEST_NS));
    }

    /// Records `count` durations of `ns` each, which is in the range.
    ///
    /// # Errors
    /// If `ns` is beyond the histogram's range.
    pub fn record_n(&mut self, ns: u64, count: u64) -> Result<(), RecordError> {
        self.record_bucket(ns, count)?;
        if count > 0 {
            self.add_exact(ns.saturating_mul(count), ns, ns, 0);
        }
        Ok(())
    }

    /// Records `count` durations by a value of their bucket alone; the exact figures of these are for
    /// [`Self::add_exact`].
    ///
    /// # Errors
    /// If `value` is beyond the histogram's range.
    pub fn record_bucket(&mut self, value: u64, count: u64) -> Result<(), RecordError> {
        self.histogram.record_n(value, count)
    }

    /// Adds the exact figures of durations whose buckets are recorded apart. Without durations, `min_ns` is
    /// `u64::MAX` and the others are 0.
    #[inline]
    pub fn add_exact(&mut self, sum_ns: u64, min_ns: u64, max_ns: u64, over_range: u64) {
        self.sum_ns = self.sum_ns.saturating_add(sum_ns);
        self.min_ns = self.min_ns.min(min_ns);
        self.max_ns = self.max_ns.max(max_ns);
        self.over_range = self.over_range.saturating_add(over_range);
    }

    /// All of them, to the layout's precision.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// Exact number of durations.
    pub fn len(&self) -> u64 {
        self.histogram.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    /// Exact sum.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Exact shortest; `None` without any.
    pub fn min_ns(&self) -> Option<u64> {
        (self.min_ns <= self.max_ns).then_some(self.min_ns)
    }

    /// Exact longest; `None` without any.
    pub fn max_ns(&self) -> Option<u64> {
        (self.min_ns <= self.max_ns).then_some(self.max_ns)
    }

    /// How many are beyond the range, and counted in the last bucket.
    pub fn over_range(&self) -> u64 {
        self.over_range
    }

    /// Quantile (0 to 1) in nanoseconds, at most the exact longest; `None` without any.
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        self.max_ns().map(|max| self.histogram.value_at_quantile(quantile).min(max))
    }

    /// These without the `count` longest, and how many that were: see [`Self::withhold`].
    pub fn without(&self, count: u64) -> (Cow<'_, Self>, u64) {
        if count == 0 {
            return (Cow::Borrowed(self), 0);
        }
        let mut less = self.clone();
        let withheld = less.withhold(count);
        (Cow::Owned(less), withheld)
    }

    /// Takes the `count` longest away; returns how many that were. The sum loses what these add up to:
    /// exactly for the longest, by their buckets for the others. The longest that is left is known by its
    /// bucket's upper end.
    ///
    /// For durations that may be from the start of one call to the end of another. Backends that keep starts
    /// by the call's place on the stack pair a call whose entry program the kernel skipped with the start of an
    /// earlier call at that place, if it skipped that one's exit program. Each such duration takes one skipped
    /// entry and one skipped exit, so there are no more of them than of either. Which ones they are cannot be
    /// seen. So many of the longest are withheld: any wrong duration that remains is at most as long as a right one that was removed.
    pub fn withhold(&mut self, count: u64) -> u64 {
        let longest = match self.max_ns() {
            Some(longest) if count > 0 && !self.is_empty() => longest,
            _ => return 0,
        };
        let recorded: Vec<(u64, u64)> = self
            .histogram
            .iter_recorded()
            .map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
            .collect();
        let mut taken = Histogram::new_from(&self.histogram);
        let (mut rest, mut taken_ns) = (count, 0_u128);
        // What is left takes no less and no more than its buckets allow.
        let (mut least_ns, mut most_ns) = (0_u128, 0_u128);
        let mut new_longest = None;
        for (value, calls) in recorded.into_iter().rev() {
            let from = self.histogram.lowest_equivalent(value);
            let to = self.histogram.highest_equivalent(value).min(longest);
            let mut away = calls.min(rest);
            rest -= away;
            let stay = calls - away;
            // The same bucket, which therefore takes it.
            if taken.record_n(from, away).is_err() {
                return 0;
            }
            if stay > 0 {
                new_longest = new_longest.or(Some(to));
                least_ns += u128::from(from) * u128::from(stay);
                most_ns += u128::from(to) * u128::from(stay);
            }
            if taken_ns == 0 && away > 0 {
                taken_ns = u128::from(longest);
                away -= 1;
            }
            taken_ns += u128::from(from.midpoint(to)) * u128::from(away);
        }
        let taken_calls = taken.len();
        if self.histogram.subtract(&taken).is_err() {
            return 0;
        }
        let left_ns = u128::from(self.sum_ns).saturating_sub(taken_ns).clamp(least_ns, most_ns);
        self.sum_ns = u64::try_from(left_ns).unwrap_or(u64::MAX);
        let none_left = (u64::MAX, 0);
        (self.min_ns, self.max_ns) = new_longest.map_or(none_left, |max| (self.min_ns, max));
        self.over_range = self.over_range.saturating_sub(taken_calls);
        taken_calls
    }
}

impl AddAssign<&Self> for Durations {
    fn add_assign(&mut self, more: &Self) {
        self.add_exact(more.sum_ns, more.min_ns, more.max_ns, more.over_range);
        if self.histogram.add(&more.histogram).is_err() {
            // Of a wider range: count the rest in the last bucket.
            for bucket in more.histogram.iter_recorded() {
                self.histogram
                    .saturating_record_n(bucket.value_iterated_to(), bucket.count_at_value());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn withheld(durations: &[u64], count: u64) -> (Histogram<u64>, u64, Option<u64>, u64) {
        let mut all = Durations::new(Histogram::new_with_bounds(1, 1 << 40, 3).unwrap());
        durations.iter().for_each(|ns| all.record_n(*ns, 1).unwrap());
        let taken = all.withhold(count);
        assert_eq!(all.min_ns(), all.max_ns().and(durations.iter().min().copied()));
        (all.histogram().clone(), all.sum_ns(), all.max_ns(), taken)
    }

    #[test]
    fn what_is_exact_stays_exact() {
        let empty = || Durations::new(Histogram::new_with_bounds(1, HIGHEST_NS, 3).unwrap());
        let (mut one, mut two) = (empty(), empty());
        assert_eq!((one.min_ns(), one.max_ns(), one.quantile_ns(0.5)), (None, None, None));
        one.record(0);
        two.record(HIGHEST_NS + 7);
        two.record_n(100_001, 2).unwrap();
        two.record_n(1, 0).unwrap();
        one += &two;
        assert_eq!((one.len(), one.sum_ns(), one.over_range()), (4, HIGHEST_NS + 200_009, 1));
        assert_eq!((one.min_ns(), one.max_ns()), (Some(0), Some(HIGHEST_NS + 7)));
        assert_eq!(one.quantile_ns(0.5), Some(100_031), "the upper end of its bucket");
        assert_eq!(two.withhold(1), 1);
        assert_eq!(
            (two.over_range(), two.min_ns(), two.max_ns()),
            (0, Some(100_001), Some(100_031))
        );
        one.reset();
        assert_eq!((one.len(), one.sum_ns(), one.min_ns(), one.over_range()), (0, 0, None, 0));
    }

    #[test]
    fn the_longest_are_taken_away() {
        let durations = [100, 200, 300, 5_000_001, 9_000_003];
        let (histogram, sum_ns, max_ns, taken) = withheld(&durations, 1);
        assert_eq!((histogram.len(), sum_ns, taken), (4, 5_000_601, 1), "the longest is exact");
        let max = max_ns.unwrap();
        assert!(histogram.equivalent(max, 5_000_001) && max >= 5_000_001, "{max}");
        let (histogram, sum_ns, max_ns, taken) = withheld(&durations, 2);
        assert_eq!((histogram.len(), histogram.max(), max_ns, taken), (3, 300, Some(300), 2));
        assert_eq!(sum_ns, 600, "the sum is what is left can take");
    }

    #[test]
    fn none_and_all_can_be_taken_away() {
        let durations = [100, 200, 70_000];
        let (histogram, sum_ns, max_ns, taken) = withheld(&durations, 0);
        assert_eq!((histogram.len(), sum_ns, max_ns, taken), (3, 70_300, Some(70_000), 0));
        let (histogram, sum_ns, max_ns, taken) = withheld(&durations, 9);
        assert_eq!((histogram.len(), sum_ns, max_ns, taken), (0, 0, None, 3));
        assert_eq!(withheld(&[], 9).3, 0);
    }

    proptest! {
        #[test]
        fn what_is_left_is_no_longer_than_a_true_one(
            truths in prop::collection::vec(1_u64..2_000_000_000, 1..60),
            wrong in prop::collection::vec(1_u64..20_000_000_000, 0..8),
        ) {
            let all: Vec<u64> = truths.iter().chain(&wrong).copied().collect();
            let (histogram, sum_ns, max_ns, taken) = withheld(&all, wrong.len() as u64);
            prop_assert_eq!(taken, wrong.len() as u64);
            prop_assert_eq!(histogram.len(), truths.len() as u64);
            let longest = *truths.iter().max().unwrap();
            // To the bucket.
            prop_assert!(max_ns.unwrap() <= histogram.highest_equivalent(longest));
            let mut sorted = all;
            sorted.sort_unstable();
            let left: u64 = sorted[..truths.len()].iter().sum();
            prop_assert!(sum_ns.abs_diff(left) <= left / 500 + wrong.iter().sum::<u64>() / 500 + 8);
        }
    }
}
