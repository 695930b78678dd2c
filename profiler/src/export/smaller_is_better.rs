//! `customSmallerIsBetter` of github-action-benchmark: a JSON list of figures.

use serde::Serialize;

use super::figures::figures;
use super::{Exporter, json::indented};
use crate::recording::Recording;

/// An entry for each figure of each handler: of several runs the average, with the lowest and the highest as `range`.
#[derive(Debug, Clone, Copy, Default)]
pub struct SmallerIsBetter;

/// One figure.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    unit: &'static str,
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<String>,
}

impl Exporter for SmallerIsBetter {
    fn serialize(&self, recording: &Recording) -> Vec<u8> {
        self.serialize_runs(std::slice::from_ref(recording)).unwrap_or_default()
    }

    fn serialize_runs(&self, runs: &[Recording]) -> Option<Vec<u8>> {
        let entry = |figure: super::figures::Figure| {
            Some(Entry {
                value: figure.mean()?,
                range: figure.range().map(|[lowest, highest]| format!("{lowest} to {highest}")),
                unit: figure.unit(),
                name: format!("{} {}", figure.handler, figure.statistic),
            })
        };
        Some(indented(&figures(runs).into_iter().filter_map(entry).collect::<Vec<_>>()))
    }
}
