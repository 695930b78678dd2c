//! How far the runs of one series are apart.

use crate::recording::{HandlerRecording, Recording, Series};
use crate::stats;

/// Statistics whose spread is given, each with its quantile; the average has none.
pub const STATISTICS: [(&str, Option<f64>); 4] =
    [("average", None), ("TP90", Some(0.90)), ("TP95", Some(0.95)), ("TP99", Some(0.99))];

/// One handler over the runs of a series.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerSpread {
    /// The handler.
    pub handler: String,
    /// Fewest and most calls that a run had.
    pub calls: (u64, u64),
    /// For each of [`STATISTICS`] the median over the runs in the meter's unit, and the spread: largest
    /// minus smallest, as a share of that median. `None` where a run had no call.
    pub statistics: [Option<(f64, f64)>; 4],
}

/// The spread of every handler that all runs have, in the order of the first.
#[must_use]
pub fn of(series: &Series) -> Vec<HandlerSpread> {
    let Some(first) = series.runs.first() else { return Vec::new() };
    let spread = |handler: &HandlerRecording| {
        let same = |run: &&Recording| {
            run.handlers
                .iter()
                .find(|other| (&other.name, &other.module) == (&handler.name, &handler.module))
                .cloned()
        };
        let runs: Vec<HandlerRecording> =
            series.runs.iter().map(|run| same(&run)).collect::<Option<_>>()?;
        let counts = runs.iter().map(|run| run.count);
        let calls = (counts.clone().min()?, counts.max()?);
        let statistics = STATISTICS.map(|(_, quantile)| {
            let values = runs.iter().map(|run| match quantile {
                None => run.mean_ns(),
                Some(quantile) => run.quantile_ns(quantile).map(|ns| ns as f64),
            });
            range(&values.collect::<Option<Vec<f64>>>()?)
        });
        Some(HandlerSpread { handler: handler.name.clone(), calls, statistics })
    };
    first.handlers.iter().filter_map(spread).collect()
}

/// Median, and largest minus smallest as a share of it.
fn range(values: &[f64]) -> Option<(f64, f64)> {
    Some((stats::median(values)?, stats::spread(values).unwrap_or(0.0)))
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn the_spread_is_in_parts_of_the_median() {
        assert_eq!(range(&[101.0, 99.0, 100.0]), Some((100.0, 0.02)));
        assert_eq!(range(&[100.0, 104.0]), Some((102.0, 4.0 / 102.0)));
        assert_eq!(range(&[7.0]), Some((7.0, 0.0)));
        assert_eq!(range(&[]), None);
    }
}
