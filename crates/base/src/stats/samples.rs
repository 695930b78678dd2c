//! How many samples a quantile needs.

/// Fewest calls beyond a percentile that a gate judges. Their number then has a standard deviation of a
/// third (1 / sqrt 10), and one stray call moves the percentile little.
const BEYOND: f64 = 10.0;

/// Fewest calls of a run for a gate to judge a quantile: ten over the share beyond it. 100 for the 90th
/// percentile, 200 for the 95th and 1,000 for the 99th. Calls of one run are not independent, so this is more than three
/// times what a finite one-sided upper bound takes: the largest of n samples is one if `1 - quantile^n >= confidence`,
/// which is 299 for the 99th percentile at 95 % (W. J. Conover, "Practical Nonparametric Statistics", tolerance limits).
pub fn for_a_gate(quantile: f64) -> u64 {
    let beyond = (1.0 - quantile).max(f64::EPSILON);
    (BEYOND / beyond - 1e-6).ceil() as u64
}

/// The same of calls whose instructions were counted: two over the share beyond it. Such a run is no sample, since
/// the same operations take the same instructions; two calls beyond the quantile, so that it is not one odd call, such
/// as the first after the driver was loaded.
pub fn for_an_exact_gate(quantile: f64) -> u64 {
    for_a_gate(quantile) / 5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!([0.90, 0.95, 0.99, 0.999].map(for_a_gate), [100, 200, 1_000, 10_000]);
    }
}
