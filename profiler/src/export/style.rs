//! What views of recordings have in common: rows by handler, and how figures are shown.

use super::cell::{Unit, clean, full_name};
use super::document::{Table, or_dash};
use crate::recording::{HandlerRecording, Meter, Recording};

/// How figures are shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// Unit of durations.
    pub(super) unit: Unit,
    /// Whether there is room for further percentiles, and for the unit in the heads of columns.
    pub(super) wide: bool,
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
    pub(super) fn heads(self) -> impl Iterator<Item = String> {
        let quantiles = self.quantiles().iter().map(|(name, _)| *name);
        ["average"].into_iter().chain(quantiles).chain(["max"]).map(move |name| self.head(name))
    }

    /// The cells below [`heads`](Self::heads).
    pub(super) fn cells(
        self,
        mean: Option<f64>,
        quantile: impl Fn(f64) -> Option<u64>,
        max: Option<u64>,
    ) -> Vec<String> {
        let quantiles = self.quantiles().iter().map(|(_, share)| self.exact(quantile(*share)));
        let average = [self.average(mean)].into_iter();
        average.chain(quantiles).chain([self.exact(max)]).collect()
    }

    pub(super) fn average(self, mean: Option<f64>) -> String {
        or_dash(mean.map(|mean| self.unit.average(mean)))
    }

    pub(super) fn exact(self, value: Option<u64>) -> String {
        or_dash(value.map(|value| self.unit.exact(value)))
    }
}

/// A row for each handler, with what `cells` makes of it; `None` is left out.
pub(super) fn by_handler(
    recording: &Recording,
    head: Vec<String>,
    cells: impl Fn(&HandlerRecording) -> Option<Vec<String>>,
) -> Table {
    let row = |handler: &HandlerRecording| {
        let name = clean(&full_name(recording, handler)).into_owned();
        Some([vec![name], cells(handler)?].concat())
    };
    Table::figures(head, recording.shown().filter_map(row))
}

/// What figures of this meter are, in titles and in plots' names.
pub(super) const fn subject_of(meter: Meter) -> [&'static str; 2] {
    match meter {
        Meter::Probes => ["Handler latencies", "Latency"],
        Meter::Exact => ["Instructions of handlers", "Instructions"],
    }
}
