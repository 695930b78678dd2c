//! Blocks: the values of runs that are comparable with each other.

/// Values of one statistic from runs of one boot, or from all runs where no boot has both sides. Each
/// value is that of one run (or the mean of one boot): the calls of a run are correlated, so they are
/// not replicates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Block {
    /// Values of the baseline.
    pub base: Vec<f64>,
    /// Values of the candidate.
    pub candidate: Vec<f64>,
}

impl Block {
    /// Number of values of the baseline and of the candidate.
    pub fn size(&self) -> (usize, usize) {
        (self.base.len(), self.candidate.len())
    }

    /// Weight of the block: `b c / (b + c)`, which minimises the variance of the estimated common
    /// difference if all runs have the same variance.
    pub(super) fn weight(&self) -> f64 {
        let (base, candidate) = (self.base.len() as f64, self.candidate.len() as f64);
        if base + candidate > 0.0 { base * candidate / (base + candidate) } else { 0.0 }
    }
}

/// Arithmetic mean; 0 without values.
pub(super) fn average(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The median; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let lower = sorted.len().checked_sub(1)? / 2;
    Some(f64::midpoint(*sorted.get(lower)?, *sorted.get(sorted.len() / 2)?))
}

/// The lowest and the highest value; `None` without values.
pub fn ends(values: &[f64]) -> Option<[f64; 2]> {
    let lowest = values.iter().copied().min_by(f64::total_cmp)?;
    Some([lowest, values.iter().copied().max_by(f64::total_cmp)?])
}

/// Range over median: (largest - smallest) / median. `None` with fewer than two values, or if the median
/// is 0.
pub fn spread(values: &[f64]) -> Option<f64> {
    let median = median(values)?;
    let [lowest, highest] = ends(values)?;
    (values.len() > 1 && median > 0.0).then(|| (highest - lowest) / median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn spreads() {
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[5.0]), None);
        assert_eq!(spread(&[0.0, 0.0, 3.0]), None);
        assert_eq!(spread(&[200.0, 201.0, 199.0]), Some(0.01));
        assert_eq!(spread(&[1.0, 4.0, 2.0, 2.0]), Some(1.5));
        assert_eq!(spread(&[7.0, 7.0]), Some(0.0));
    }
}
