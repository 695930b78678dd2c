//! The durations of one function, exactly as in the text, and their statistics.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::stats::nearest_rank;

/// How a percentile of a list of values is defined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Percentile {
    /// Interpolated linearly between the two nearest values (Hyndman and Fan's type 7, which is
    /// numpy's default).
    #[default]
    Linear,
    /// The smallest value that at least that share of all values is at or below.
    NearestRank,
    /// `sorted[int(r * n) - 1]`, as scripts for such files compute it: one rank below the nearest, and
    /// the last value where `int(r * n)` is 0.
    Seed,
}

impl Percentile {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::NearestRank => "nearest-rank",
            Self::Seed => "seed",
        }
    }

    /// Its definition, as part of a sentence.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Linear => "linear: interpolated between the two nearest values",
            Self::NearestRank => "nearest-rank: the smallest value that so many do not exceed",
            Self::Seed => "seed: sorted[int(r * n) - 1]",
        }
    }
}

/// Nanoseconds below which durations may be counted in an array.
const SHORT_NS: usize = 8192;
const PS_PER_NS: u64 = 1000;

/// Numbers of calls of each whole number of nanoseconds below [`SHORT_NS`].
#[derive(Debug, Clone)]
pub(super) struct ShortCounts(Box<[u64]>);

impl Default for ShortCounts {
    fn default() -> Self {
        Self(vec![0; SHORT_NS].into_boxed_slice())
    }
}

impl ShortCounts {
    /// The count of calls of `ps` picoseconds; `None` if they are not counted here.
    #[inline]
    pub(super) fn get_mut(&mut self, ps: u64) -> Option<&mut u64> {
        self.0.get_mut((ps / PS_PER_NS) as usize).filter(|_| ps.is_multiple_of(PS_PER_NS))
    }

    /// Number of all calls.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Picoseconds and number of calls, where there are any.
    fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let counts = self.0.iter().zip(0..).filter(|&(&count, _)| count > 0);
        counts.map(|(&count, ns)| (ns * PS_PER_NS, count))
    }
}

/// Durations by their frequency. The text has three decimals of a microsecond, so a million calls
/// have a few thousand different durations.
#[derive(Debug, Clone, Default)]
pub struct Values {
    counts: HashMap<u64, u64, RandomState>,
    /// The short ones, once there are many.
    short: Option<ShortCounts>,
    count: u64,
    sum_ps: u128,
    min_ps: u64,
    max_ps: u64,
    /// Significant bits that are kept of each value; `None` keeps all.
    bits: Option<u32>,
    /// Calls whose value is not among `counts`.
    unkept: u64,
}

/// A sorted list of values, for percentiles.
#[derive(Debug)]
pub struct Sorted<'a> {
    values: &'a Values,
    /// Each value with the number of calls at or below it.
    ranks: Vec<(u64, u64)>,
}

impl Values {
    /// Records a call of `ps` picoseconds; true if the value is new and kept. With `full`, a new value
    /// is counted and not kept.
    #[inline]
    pub fn record(&mut self, ps: u64, full: bool) -> bool {
        self.min_ps = if self.count == 0 { ps } else { self.min_ps.min(ps) };
        self.max_ps = self.max_ps.max(ps);
        self.count += 1;
        self.sum_ps += u128::from(ps);
        if let Some(short) = &mut self.short
            && let Some(count) = short.get_mut(ps)
        {
            *count += 1;
            return false;
        }
        let key = self.key(ps);
        if let Some(count) = self.counts.get_mut(&key) {
            *count += 1;
            return false;
        }
        if full {
            self.unkept += 1;
            return false;
        }
        self.counts.insert(key, 1);
        true
    }

    /// Counts short durations in an array from now on, which is faster. Returns the number of distinct
    /// values that it moved there; `None` if that is not possible.
    pub fn keep_short(&mut self) -> Option<usize> {
        if self.short.is_some() || self.bits.is_some() {
            return None;
        }
        let before = self.counts.len();
        self.move_short();
        Some(before - self.counts.len())
    }

    fn move_short(&mut self) -> &mut ShortCounts {
        let mut short = ShortCounts::default();
        self.counts
            .retain(|&ps, &mut count| short.get_mut(ps).map(|moved| *moved = count).is_none());
        self.short.insert(short)
    }

    /// Adds calls that were counted elsewhere.
    pub(super) fn add_short(&mut self, short: &ShortCounts) {
        if self.short.is_none() {
            self.move_short();
        }
        for (ps, count) in short.iter() {
            self.min_ps = if self.count == 0 { ps } else { self.min_ps.min(ps) };
            self.max_ps = self.max_ps.max(ps);
            self.count += count;
            self.sum_ps += u128::from(ps) * u128::from(count);
            if let Some(own) = self.short.as_mut().and_then(|own| own.get_mut(ps)) {
                *own += count;
            }
        }
    }

    /// The value that `ps` is stored as: itself, or the largest with the same leading bits.
    fn key(&self, ps: u64) -> u64 {
        let Some(bits) = self.bits else { return ps };
        let length = u64::BITS - ps.leading_zeros();
        ps | (1_u64.checked_shl(length.saturating_sub(bits)).unwrap_or(0)).wrapping_sub(1)
    }

    /// Keeps only the `bits` leading bits of each value from now on.
    pub fn coarsen(&mut self, bits: u32) {
        if self.bits.is_some_and(|kept| kept <= bits) {
            return;
        }
        self.bits = Some(bits);
        let fine = std::mem::take(&mut self.counts);
        for (value, count) in fine {
            *self.counts.entry(self.key(value)).or_default() += count;
        }
        self.counts.shrink_to_fit();
    }

    /// Distinct values that are kept outside the array.
    #[must_use]
    pub fn distinct(&self) -> usize {
        self.counts.len()
    }

    /// Number of calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether percentiles are those of the values themselves.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.bits.is_none() && self.unkept == 0
    }

    /// Sum of all durations in picoseconds; always exact.
    #[must_use]
    pub fn sum_ps(&self) -> u128 {
        self.sum_ps
    }

    /// Mean in picoseconds; `None` without a call.
    #[must_use]
    pub fn mean_ps(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ps as f64 / self.count as f64)
    }

    /// Minimum in picoseconds; always exact.
    #[must_use]
    pub fn min_ps(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min_ps)
    }

    /// Maximum in picoseconds; always exact.
    #[must_use]
    pub fn max_ps(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max_ps)
    }

    /// Each value with its number of calls, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let short = self.short.iter().flat_map(ShortCounts::iter);
        self.counts.iter().map(|(&value, &count)| (value, count)).chain(short)
    }

    /// The values in order.
    #[must_use]
    pub fn sorted(&self) -> Sorted<'_> {
        let mut ranks: Vec<(u64, u64)> = self.iter().collect();
        ranks.sort_unstable();
        let mut seen = 0;
        for (_, count) in &mut ranks {
            seen += *count;
            *count = seen;
        }
        Sorted { values: self, ranks }
    }
}

impl Sorted<'_> {
    /// The percentile `percent` (1 to 100) in picoseconds; `None` without a call, or if some values
    /// were not kept.
    #[must_use]
    pub fn percentile(&self, percent: u32, method: Percentile) -> Option<f64> {
        let count = self.values.count;
        if count == 0 || self.values.unkept > 0 {
            return None;
        }
        let percent = percent.min(100);
        match method {
            Percentile::Linear => {
                // In whole numbers: the place is (n - 1) * percent / 100, from 0.
                let place = u128::from(count - 1) * u128::from(percent);
                let (below, part) = ((place / 100) as u64, (place % 100) as f64);
                let low = self.at(below + 1)?;
                let high = if part > 0.0 { self.at(below + 2)? } else { low };
                Some(low as f64 + (high - low) as f64 * part / 100.0)
            }
            Percentile::NearestRank => {
                self.at(nearest_rank(count, f64::from(percent) / 100.0)?).map(|ps| ps as f64)
            }
            Percentile::Seed => {
                let share = f64::from(percent) / 100.0;
                // Python's int() cuts off, and its index -1 is the last element.
                let rank = match (share * count as f64) as u64 {
                    0 => count,
                    rank => rank,
                };
                self.at(rank).map(|ps| ps as f64)
            }
        }
    }

    /// The value at a rank, from 1.
    fn at(&self, rank: u64) -> Option<u64> {
        let place = self.ranks.partition_point(|&(_, upto)| upto < rank);
        // A coarse value stands for a range, whose upper end may be above the longest call.
        self.ranks.get(place).map(|&(value, _)| value.min(self.values.max_ps))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values(list: &[u64]) -> Values {
        let mut values = Values::default();
        for &value in list {
            values.record(value, false);
        }
        values
    }

    fn percentiles(list: &[u64], method: Percentile) -> Vec<f64> {
        let values = values(list);
        let sorted = values.sorted();
        [25, 50, 90, 95, 99, 100].map(|p| sorted.percentile(p, method).expect("some")).to_vec()
    }

    #[test]
    fn worked_examples() {
        // numpy.percentile([1, 2, 3, 4], ...) and by hand.
        let four = [40, 10, 30, 20];
        let close = |a: &[f64], b: &[f64]| {
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9), "{a:?} {b:?}");
        };
        close(&percentiles(&four, Percentile::Linear), &[17.5, 25.0, 37.0, 38.5, 39.7, 40.0]);
        close(&percentiles(&four, Percentile::NearestRank), &[10.0, 20.0, 40.0, 40.0, 40.0, 40.0]);
        close(&percentiles(&four, Percentile::Seed), &[10.0, 20.0, 30.0, 30.0, 30.0, 40.0]);
        // Of one value int(r * n) is 0, and sorted[-1] the last one.
        close(&percentiles(&[7], Percentile::Seed), &[7.0; 6]);
        close(&percentiles(&[7], Percentile::Linear), &[7.0; 6]);
        let hundred: Vec<u64> = (1..=100).collect();
        close(
            &percentiles(&hundred, Percentile::Linear),
            &[25.75, 50.5, 90.1, 95.05, 99.01, 100.0],
        );
        close(&percentiles(&hundred, Percentile::Seed), &[25.0, 50.0, 90.0, 95.0, 99.0, 100.0]);
    }

    #[test]
    fn nothing_has_no_statistics() {
        let values = Values::default();
        assert_eq!((values.mean_ps(), values.min_ps(), values.max_ps()), (None, None, None));
        assert_eq!(values.sorted().percentile(50, Percentile::Linear), None);
    }

    #[test]
    fn values_not_kept_are_counted_and_leave_no_percentile() {
        let mut values = values(&[5, 6]);
        assert!(!values.record(7, true));
        assert!(!values.record(6, true));
        assert_eq!((values.count(), values.sum_ps(), values.max_ps()), (4, 24, Some(7)));
        assert!(!values.is_exact());
        assert_eq!(values.sorted().percentile(50, Percentile::Linear), None);
    }

    #[test]
    fn short_durations_in_an_array_are_the_same() {
        let list: Vec<u64> = (0..3000).map(|at| at * at % 9001 * 500 + at % 3).collect();
        let plain = values(&list);
        let mut array = values(&list[..1000]);
        let before = array.distinct();
        let moved = array.keep_short().expect("it did not before");
        assert!(moved > 0 && array.distinct() == before - moved);
        assert_eq!(array.keep_short(), None);
        for &value in &list[1000..] {
            array.record(value, false);
        }
        assert!(array.is_exact() && array.distinct() < plain.distinct());
        let all = |values: &Values| {
            let mut all: Vec<_> = values.iter().collect();
            all.sort_unstable();
            all
        };
        assert_eq!(all(&array), all(&plain));
        assert_eq!(
            (array.count(), array.sum_ps(), array.min_ps(), array.max_ps()),
            (plain.count(), plain.sum_ps(), plain.min_ps(), plain.max_ps())
        );
        for percent in 1..=100 {
            let of = |values: &Values| values.sorted().percentile(percent, Percentile::Linear);
            assert_eq!(of(&array), of(&plain));
        }
    }

    proptest! {
        #[test]
        fn as_the_sorted_list(
            mut list in prop::collection::vec(prop_oneof![0..50_u64, any::<u64>()], 1..100),
            percent in 1..=100_u32,
        ) {
            let values = values(&list);
            list.sort_unstable();
            let n = list.len();
            let sorted = values.sorted();
            let share = f64::from(percent) / 100.0;
            let seed = (share * n as f64) as usize;
            let seed = if seed == 0 { n } else { seed };
            prop_assert_eq!(sorted.percentile(percent, Percentile::Seed), Some(list[seed - 1] as f64));
            let nearest = (n * percent as usize).div_ceil(100);
            prop_assert_eq!(
                sorted.percentile(percent, Percentile::NearestRank), Some(list[nearest - 1] as f64));
            let linear = sorted.percentile(percent, Percentile::Linear).expect("some");
            let place = (n - 1) * percent as usize;
            prop_assert!(linear >= list[place / 100] as f64);
            prop_assert!(linear <= list[(place / 100 + 1).min(n - 1)] as f64);
            prop_assert_eq!(values.max_ps(), list.last().copied());
            prop_assert_eq!(values.min_ps(), list.first().copied());
        }

        #[test]
        fn coarse_values_are_near(
            list in prop::collection::vec(prop_oneof![(0..9000_u64).prop_map(|ns| ns * 1000), any::<u64>()], 1..100),
            percent in 1..=100_u32,
            array in any::<bool>(),
        ) {
            let exact = values(&list);
            let mut coarse = values(&list);
            if array {
                coarse.keep_short();
            }
            coarse.coarsen(11);
            prop_assert!(!coarse.is_exact());
            prop_assert!(coarse.distinct() <= exact.distinct());
            prop_assert_eq!(coarse.sum_ps(), exact.sum_ps());
            let [a, b] = [&exact, &coarse].map(|values| {
                values.sorted().percentile(percent, Percentile::NearestRank).expect("some")
            });
            prop_assert!(a <= b && b <= a * (1.0 + 1.0 / 1024.0), "{} {}", a, b);
        }
    }
}
