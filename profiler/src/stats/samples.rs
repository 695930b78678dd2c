//! How many samples a figure needs before it is worth anything.

/// How many calls have to lie beyond a percentile before a gate judges by it: the number beyond it then
/// scatters by a third (1 / sqrt 10) and not by its own size, and one stray call moves it little.
const BEYOND: f64 = 10.0;

/// Fewest independent samples that give a quantile a finite one-sided upper bound of this confidence:
/// the largest of n samples is such a bound once `1 - quantile^n >= confidence` (W. J. Conover, "Practical
/// Nonparametric Statistics", tolerance limits). 299 for the 99th percentile at 95 %. `None` for a
/// quantile or a confidence outside 0 to 1.
#[must_use]
pub fn for_a_bound(quantile: f64, confidence: f64) -> Option<u64> {
    let is_share = |share: f64| share > 0.0 && share < 1.0;
    if !is_share(quantile) || !is_share(confidence) {
        return None;
    }
    // A hair less, so that a quotient that is whole does not become one more by rounding.
    let least = ((1.0 - confidence).ln() / quantile.ln() - 1e-9).ceil();
    Some(least.max(1.0) as u64)
}

/// Fewest calls of one run by which a gate judges a quantile: ten over the share beyond it. 100 for the
/// 90th percentile, 200 for the 95th and 1,000 for the 99th: more than three times what a finite bound
/// takes, since calls of one run are not independent.
#[must_use]
pub fn for_a_gate(quantile: f64) -> u64 {
    let beyond = (1.0 - quantile).max(f64::EPSILON);
    (BEYOND / beyond - 1e-6).ceil() as u64
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
