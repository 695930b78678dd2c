//! Durations that may be from the start of one call to the end of another.
//!
//! Backends that keep starts by the call's place on the stack pair a call whose entry program the kernel
//! skipped with the start of an earlier call at that place, if it skipped that one's exit program. Each
//! such duration takes one skipped entry and one skipped exit, so there are no more of them than of either.
//! Which ones they are cannot be seen. So many of the longest are withheld: a false one that stays is no
//! longer than a true one that went.

use hdrhistogram::Histogram;

/// Durations of one handler, with what is known of them exactly.
pub(crate) struct Durations<'a> {
    pub(crate) histogram: &'a mut Histogram<u64>,
    pub(crate) sum_ns: &'a mut u64,
    pub(crate) max_ns: &'a mut Option<u64>,
}

impl Durations<'_> {
    /// Takes the `count` longest away; returns how many that were. The sum loses what these add up to:
    /// exactly for the longest, by their buckets for the others. The longest that is left is known by its
    /// bucket's upper end.
    pub(crate) fn withhold(self, count: u64) -> u64 {
        let Self { histogram, sum_ns, max_ns } = self;
        let longest = match *max_ns {
            Some(longest) if count > 0 && !histogram.is_empty() => longest,
            _ => return 0,
        };
        let bounds = |histogram: &Histogram<u64>, value| {
            (histogram.lowest_equivalent(value), histogram.highest_equivalent(value).min(longest))
        };
        let recorded: Vec<(u64, u64)> = histogram
            .iter_recorded()
            .map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
            .collect();
        let mut taken = Histogram::new_from(histogram);
        let (mut rest, mut taken_ns) = (count, 0_u128);
        // What is left takes no less and no more than its buckets allow.
        let (mut least_ns, mut most_ns) = (0_u128, 0_u128);
        let mut new_longest = None;
        for (value, calls) in recorded.into_iter().rev() {
            let (from, to) = bounds(histogram, value);
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
        if histogram.subtract(&taken).is_err() {
            return 0;
        }
        let left_ns = u128::from(*sum_ns).saturating_sub(taken_ns).clamp(least_ns, most_ns);
        *sum_ns = u64::try_from(left_ns).unwrap_or(u64::MAX);
        *max_ns = new_longest;
        taken_calls
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn withheld(durations: &[u64], count: u64) -> (Histogram<u64>, u64, Option<u64>, u64) {
        let mut histogram = Histogram::new_with_bounds(1, 1 << 40, 3).unwrap();
        for &ns in durations {
            histogram.record(ns).unwrap();
        }
        let mut sum_ns = durations.iter().sum();
        let mut max_ns = durations.iter().max().copied();
        let of = Durations { histogram: &mut histogram, sum_ns: &mut sum_ns, max_ns: &mut max_ns };
        let taken = of.withhold(count);
        (histogram, sum_ns, max_ns, taken)
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
