//! Holm's adjustment of p-values: it bounds the probability of any false alarm among many comparisons.
//!
//! S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
//! Statistics 6 (1979). It is valid for any dependence between the comparisons.

/// Adjusted p-values in the given order, to compare with the level of the whole family. The k-th
/// smallest of m is multiplied by m - k + 1; it is at least the one before, and at most 1.
pub fn adjust(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut floor = 0.0_f64;
    for (place, index) in order.into_iter().enumerate() {
        let factor = (p_values.len() - place) as f64;
        floor = floor.max((p_values[index] * factor).min(1.0));
        adjusted[index] = floor;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Worked out by hand from the definition: 4 x 0.005, 3 x 0.01, 2 x 0.03, and 0.04 raised to the one
    /// before it.
    #[test]
    fn known_values() {
        let adjusted = adjust(&[0.01, 0.04, 0.03, 0.005]);
        for (found, expected) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((found - expected).abs() < 1e-12, "{adjusted:?}");
        }
        assert!(adjust(&[]).is_empty());
        assert_eq!(adjust(&[0.9, 0.8]), [1.0, 1.0]);
    }

    proptest! {
        #[test]
        fn never_smaller_and_in_the_same_order(p in prop::collection::vec(0.0..=1.0_f64, 0..30)) {
            let adjusted = adjust(&p);
            for i in 0..p.len() {
                prop_assert!(adjusted[i] >= p[i] && adjusted[i] <= 1.0);
                prop_assert!(adjusted[i] <= (p[i] * p.len() as f64).min(1.0).max(
                    p.iter().zip(&adjusted).filter(|(q, _)| **q <= p[i]).map(|(_, a)| *a).fold(0.0, f64::max)
                ));
                for j in 0..p.len() {
                    prop_assert!(p[i] > p[j] || adjusted[i] <= adjusted[j]);
                }
            }
        }
    }
}
