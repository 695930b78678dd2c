//! How figures of recordings are shown.

use profiler_base::stats::{median, spread};
use profiler_recording::Meter;

use super::cell::Unit;
use super::document::or_dash;

/// How figures are shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// Unit of durations.
    pub(super) unit: Unit,
    /// Whether there is room for further percentiles, and for the unit in the heads of columns.
    pub(super) wide: bool,
    /// Whether figures are medians over several runs, with spreads beside them.
    pub(super) several: bool,
}

const QUANTILES: [(&str, f64); 5] =
    [("TP50", 0.50), ("TP90", 0.90), ("TP95", 0.95), ("TP99", 0.99), ("TP99.9", 0.999)];

impl Style {
    pub(super) fn quantiles(self) -> &'static [(&'static str, f64)] {
        if self.wide { &QUANTILES } else { &QUANTILES[1..4] }
    }

    /// The head of a column of durations.
    pub(super) fn head(self, name: &str) -> String {
        if self.wide { format!("{name}, {}", self.unit) } else { name.to_owned() }
    }

    /// Heads of the average, of the percentiles and of the maximum.
    pub(super) fn heads(self) -> Vec<String> {
        let mut heads = vec![self.head("average")];
        heads.extend(self.spread(|| "spread".to_owned()));
        for (name, _) in self.quantiles() {
            heads.push(self.head(name));
            heads.extend(self.spread(|| "spread".to_owned()).filter(|_| *name == "TP99"));
        }
        heads.push(self.head("max"));
        heads
    }

    fn spread(self, cell: impl FnOnce() -> String) -> Option<String> {
        self.several.then(cell)
    }

    pub(super) fn average(self, mean: Option<f64>) -> String {
        or_dash(mean.map(|mean| self.unit.average(mean)))
    }

    fn exact(self, value: Option<u64>) -> String {
        or_dash(value.map(|value| self.unit.exact(value)))
    }
}

/// The figures of a row in each run.
#[derive(Default)]
pub(super) struct Samples {
    counts: Vec<u64>,
    means: Vec<f64>,
    /// Of each percentile.
    quantiles: Vec<Vec<f64>>,
    max: Option<u64>,
}

impl Samples {
    pub(super) fn add(
        &mut self,
        style: Style,
        (count, mean, max): (u64, Option<f64>, Option<u64>),
        quantile: impl Fn(f64) -> Option<u64>,
    ) {
        self.counts.push(count);
        self.means.extend(mean);
        self.max = self.max.max(max);
        self.quantiles.resize(style.quantiles().len(), Vec::new());
        for (values, (_, share)) in self.quantiles.iter_mut().zip(style.quantiles()) {
            values.extend(quantile(*share).map(|value| value as f64));
        }
    }

    /// The number of calls, of several runs after that of the runs.
    pub(super) fn counts(&self, style: Style) -> Vec<String> {
        let runs = style.spread(|| self.counts.len().to_string());
        let counts = match (self.counts.iter().min(), self.counts.iter().max()) {
            (Some(fewest), Some(most)) if fewest != most => format!("{fewest}..{most}"),
            (_, most) => or_dash(most.map(u64::to_string)),
        };
        runs.into_iter().chain([counts]).collect()
    }

    /// The cells below [`Style::heads`].
    pub(super) fn cells(&self, style: Style) -> Vec<String> {
        let mut cells = vec![style.average(median(&self.means))];
        cells.extend(style.spread(|| apart(&self.means)));
        for ((name, _), values) in style.quantiles().iter().zip(&self.quantiles) {
            // The median of two runs may lie between two whole nanoseconds.
            cells.push(style.exact(median(values).map(|value| value.round().max(0.0) as u64)));
            cells.extend(style.spread(|| apart(values)).filter(|_| *name == "TP99"));
        }
        cells.push(style.exact(self.max));
        cells
    }
}

fn apart(values: &[f64]) -> String {
    or_dash(spread(values).map(|share| format!("{:.2}%", share * 100.0)))
}

/// What figures of this meter are, in titles and in plots' names.
pub(super) const fn subject_of(meter: Meter) -> [&'static str; 2] {
    match meter {
        Meter::Probes => ["Handler latencies", "Latency"],
        Meter::Exact => ["Instructions of handlers", "Instructions"],
    }
}
