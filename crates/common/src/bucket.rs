//! HdrHistogram's bucket layout: which counter a duration belongs to.
//!
//! The layout is the one that every HdrHistogram implementation uses when the lowest discernible
//! value is 1: values below `2^magnitude` have a counter each; above, every doubling of the value
//! halves the resolution, so that a counter never spans more than one part in `10^digits`.
//! `magnitude` is the exponent of the smallest power of two that is at least `2 * 10^digits`.
//!
//! Proved against the `hdrhistogram` crate by the tests of this crate.

/// Longest duration that a histogram tells apart, in nanoseconds: 60 s.
///
/// Longer ones are counted in the bucket of this value and told apart by a counter of their own.
pub const HIGHEST_NS: u64 = 60_000_000_000;

/// Shortest duration that a histogram tells apart, in nanoseconds.
pub const LOWEST_NS: u64 = 1;

/// Sub-bucket magnitude for 2 significant digits: `2^8 = 256 >= 200`.
pub const MAGNITUDE_2: u32 = 8;

/// Sub-bucket magnitude for 3 significant digits: `2^11 = 2048 >= 2000`.
pub const MAGNITUDE_3: u32 = 11;

/// Number of counters of a histogram of this magnitude that reaches [`HIGHEST_NS`].
#[must_use]
pub const fn counters(magnitude: u32) -> usize {
    let mut buckets = 1;
    let mut smallest_untrackable = 1u64 << magnitude;
    while smallest_untrackable <= HIGHEST_NS {
        smallest_untrackable <<= 1;
        buckets += 1;
    }
    (buckets + 1) << (magnitude - 1)
}

/// Counters of a histogram with 2 significant digits.
pub const COUNTERS_2: usize = counters(MAGNITUDE_2);

/// Counters of a histogram with 3 significant digits.
pub const COUNTERS_3: usize = counters(MAGNITUDE_3);

/// Counter of a duration of at most [`HIGHEST_NS`] that is at least `2^MAGNITUDE`.
///
/// Split from [`index`] so that the BPF side can keep it off its fast path. BPF has no
/// instruction that counts leading zeros, so the exponent is found by halving.
#[inline(always)]
#[must_use]
pub const fn index_above<const MAGNITUDE: u32>(value: u64) -> usize {
    let mut shift = 1;
    let mut rest = value >> MAGNITUDE;
    // HIGHEST_NS is below 2^36 and the magnitude at least 8: the rest has at most 28 bits.
    if rest >= 1 << 16 {
        rest >>= 16;
        shift += 16;
    }
    if rest >= 1 << 8 {
        rest >>= 8;
        shift += 8;
    }
    if rest >= 1 << 4 {
        rest >>= 4;
        shift += 4;
    }
    if rest >= 1 << 2 {
        rest >>= 2;
        shift += 2;
    }
    if rest >= 1 << 1 {
        shift += 1;
    }
    ((shift as usize) << (MAGNITUDE - 1)) + (value >> shift) as usize
}

/// Counter of a duration, which must be at most [`HIGHEST_NS`].
#[inline(always)]
#[must_use]
pub const fn index<const MAGNITUDE: u32>(value: u64) -> usize {
    if value < 1 << MAGNITUDE { value as usize } else { index_above::<MAGNITUDE>(value) }
}

/// Smallest duration in nanoseconds that counter `index` counts: the inverse of [`index`].
#[must_use]
pub const fn lowest_value(magnitude: u32, index: usize) -> u64 {
    let half = 1usize << (magnitude - 1);
    if index < 2 * half {
        return index as u64;
    }
    let shift = (index >> (magnitude - 1)) - 1;
    (((index & (half - 1)) + half) as u64) << shift
}

#[cfg(test)]
mod tests {
    extern crate std;

    use hdrhistogram::Histogram;
    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;

    fn reference(digits: u8) -> Histogram<u64> {
        Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, digits).unwrap()
    }

    /// The counter that the reference put a value in, found by walking its counters from zero.
    fn reference_index(digits: u8, value: u64) -> usize {
        let mut histogram = reference(digits);
        histogram.record(value).unwrap();
        histogram
            .iter_all()
            .position(|step| step.count_at_value() == 1)
            .expect("the value was recorded")
    }

    fn index_of(digits: u8, value: u64) -> usize {
        match digits {
            2 => index::<MAGNITUDE_2>(value),
            3 => index::<MAGNITUDE_3>(value),
            _ => unreachable!(),
        }
    }

    fn magnitude(digits: u8) -> u32 {
        if digits == 2 { MAGNITUDE_2 } else { MAGNITUDE_3 }
    }

    #[test]
    fn as_many_counters_as_the_reference() {
        assert_eq!(reference(2).distinct_values(), COUNTERS_2);
        assert_eq!(reference(3).distinct_values(), COUNTERS_3);
    }

    #[test]
    fn named_values_are_where_the_reference_has_them() {
        let mut values: Vec<u64> = [0, 1, 2, 255, 256, 257, 511, 512, 2047, 2048, 2049].into();
        for exponent in [8, 11, 12, 16, 24, 30, 31, 32, 33, 35] {
            let power = 1u64 << exponent;
            values.extend([power - 1, power, power + 1]);
        }
        values.extend([u64::from(u32::MAX), HIGHEST_NS - 1, HIGHEST_NS]);
        for digits in [2, 3] {
            for &value in &values {
                assert_eq!(
                    index_of(digits, value),
                    reference_index(digits, value),
                    "{value} ns with {digits} digits"
                );
            }
        }
    }

    /// Every edge of every counter, not a sample of them: the first and last value of a counter
    /// have its index, and the value after the last has the next.
    #[test]
    fn every_counter_edge_agrees_with_the_reference() {
        for digits in [2u8, 3] {
            let histogram = reference(digits);
            let mut value = 0;
            for counter in 0.. {
                let last = histogram.highest_equivalent(value);
                assert_eq!(lowest_value(magnitude(digits), counter), value);
                assert_eq!(index_of(digits, value), counter, "first value {value}");
                assert_eq!(index_of(digits, last.min(HIGHEST_NS)), counter, "last value {last}");
                value = histogram.next_non_equivalent(value);
                if value > HIGHEST_NS {
                    break;
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn any_value_agrees_with_the_reference(bits in 0u32..36, low in any::<u64>()) {
            let value = ((1u64 << bits) | (low & ((1 << bits) - 1))).min(HIGHEST_NS);
            for digits in [2u8, 3] {
                let histogram = reference(digits);
                let counter = index_of(digits, value);
                prop_assert!(counter < histogram.distinct_values());
                prop_assert_eq!(
                    lowest_value(magnitude(digits), counter),
                    histogram.lowest_equivalent(value)
                );
            }
        }
    }
}
