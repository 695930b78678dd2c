//! Percentiles of the durations themselves, by the definitions that people use for such files.

use crate::stats::{Bucket, at_rank, nearest_rank};

/// How a percentile of a list of values is defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Percentile {
    /// Hyndman and Fan's type 7, which is numpy's default.
    Linear,
    /// The definition of recordings.
    NearestRank,
    /// As scripts for such files compute it: mostly one rank below the nearest.
    Seed,
}

impl Percentile {
    /// Its definition.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Linear => "Interpolated linearly between the two nearest values",
            Self::NearestRank => {
                "The smallest value that at least that share of the values does not exceed"
            }
            Self::Seed => "`sorted[int(r * n) - 1]`",
        }
    }

    /// The percentile `percent` (1 to 100) of ascending values in nanoseconds; `None` without one.
    pub(super) fn of(self, values: &[Bucket], percent: u8) -> Option<f64> {
        let count: u64 = values.iter().map(|value| value.count).sum();
        let share = f64::from(percent) / 100.0;
        let at = |rank| at_rank(values, rank).map(|ns| ns as f64);
        match self {
            Self::Linear => {
                // In whole numbers: the place is (n - 1) * percent / 100, from 0.
                let place = u128::from(count.checked_sub(1)?) * u128::from(percent);
                let (below, part) = ((place / 100) as u64, (place % 100) as f64 / 100.0);
                let low = at(below + 1)?;
                Some(low + (at((below + 2).min(count))? - low) * part)
            }
            Self::NearestRank => at(nearest_rank(count, share)?),
            // Python's int() cuts off, and its index -1 is the last element.
            Self::Seed => match (share * count as f64) as u64 {
                0 => at(count),
                rank => at(rank),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn percentiles(list: &[u64], kind: Percentile) -> Vec<f64> {
        let mut sorted = list.to_vec();
        sorted.sort_unstable();
        let values: Vec<Bucket> =
            sorted.iter().map(|&ns| Bucket { from_ns: ns, to_ns: ns, count: 1 }).collect();
        [25, 50, 90, 95, 99, 100].map(|percent| kind.of(&values, percent).expect("some")).to_vec()
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
        let linear = [25.75, 50.5, 90.1, 95.05, 99.01, 100.0];
        close(&percentiles(&hundred, Percentile::Linear), &linear);
        close(&percentiles(&hundred, Percentile::Seed), &[25.0, 50.0, 90.0, 95.0, 99.0, 100.0]);
        assert_eq!(Percentile::Linear.of(&[], 50), None);
    }

    proptest! {
        #[test]
        fn as_the_sorted_list(
            counts in prop::collection::btree_map(0..50_u64, 1..9_u64, 1..30),
            percent in 1..=100_u8,
        ) {
            let values: Vec<Bucket> =
                counts.iter().map(|(&ns, &count)| Bucket { from_ns: ns, to_ns: ns, count }).collect();
            let list: Vec<u64> =
                counts.iter().flat_map(|(&ns, &count)| std::iter::repeat_n(ns, count as usize)).collect();
            let (n, share) = (list.len(), f64::from(percent) / 100.0);
            let seed = match (share * n as f64) as usize { 0 => n, rank => rank };
            prop_assert_eq!(Percentile::Seed.of(&values, percent), Some(list[seed - 1] as f64));
            let nearest = (n * usize::from(percent)).div_ceil(100);
            prop_assert_eq!(Percentile::NearestRank.of(&values, percent), Some(list[nearest - 1] as f64));
            let place = (n - 1) as f64 * share;
            let (low, high) = (list[place as usize] as f64, list[(place as usize + 1).min(n - 1)] as f64);
            let linear = Percentile::Linear.of(&values, percent).expect("some");
            prop_assert!((linear - (low + (high - low) * place.fract())).abs() < 1e-6);
        }
    }
}
