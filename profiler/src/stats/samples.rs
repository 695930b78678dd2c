//! How many samples a quantile needs.

/// Fewest calls beyond a percentile that a gate judges. Their number then has a standard deviation of a
/// third (1 / sqrt 10), and one stray call moves the percentile little.
const BEYOND: f64 = 10.0;

/// Fewest independent samples for a finite one-sided upper confidence bound of a quantile: the largest of
/// n samples is such a bound if `1 - quantile^n >= confidence` (W. J. Conover, "Practical Nonparametric
/// Statistics", tolerance limits). 299 for the 99th percentile at 95 %. `None` unless both arguments are
/// between 0 and 1.
#[must_use]
pub fn for_a_bound(quantile: f64, confidence: f64) -> Option<u64> {
    let is_share = |share: f64| share > 0.0 && share < 1.0;
    if !is_share(quantile) || !is_share(confidence) {
        return None;
    }
    // A hair less, so that rounding does not push a whole quotient up by one.
    let least = ((1.0 - confidence).ln() / quantile.ln() - 1e-9).ceil();
    Some(least.max(1.0) as u64)
}

/// Fewest calls of a run for a gate to judge a quantile: ten over the share beyond it. 100 for the 90th
/// percentile, 200 for the 95th and 1,000 for the 99th. That is more than three times what a finite bound
/// takes, because calls of one run are not independent.
#[must_use]
pub fn for_a_gate(quantile: f64) -> u64 {
    let beyond = (1.0 - quantile).max(f64::EPSILON);
    (BEYOND / beyond - 1e-6).ceil() as u64
}

/// The same of calls whose instructions were counted: two over the share beyond it. Such a run is no sample, since
/// the same operations take the same instructions; two calls beyond the quantile, so that it is not one odd call, such
/// as the first after the driver was loaded.
#[must_use]
pub fn for_an_exact_gate(quantile: f64) -> u64 {
    for_a_gate(quantile) / 5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(for_a_bound(0.99, 0.95), Some(299));
        assert_eq!(for_a_bound(0.95, 0.95), Some(59));
        assert_eq!(for_a_bound(0.90, 0.95), Some(29));
        assert_eq!(for_a_bound(0.5, 0.5), Some(1));
        assert_eq!(for_a_bound(1.0, 0.95), None);
        assert_eq!(for_a_bound(0.99, 0.0), None);
        assert_eq!([0.90, 0.95, 0.99, 0.999].map(for_a_gate), [100, 200, 1_000, 10_000]);
    }

    #[test]
    fn one_sample_fewer_is_not_enough() {
        for quantile in [0.5, 0.9, 0.95, 0.99, 0.999] {
            for confidence in [0.5, 0.9, 0.95, 0.99] {
                let n = for_a_bound(quantile, confidence).unwrap() as i32;
                assert!(1.0 - quantile.powi(n) >= confidence - 1e-9);
                assert!(1.0 - quantile.powi(n - 1) < confidence);
            }
        }
    }
}
