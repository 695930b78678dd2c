//! Bencher Metric Format: a JSON object of benchmarks, each with measures by name (bencher.dev/bmf.json).

use serde::Serialize;
use serde_json::{Map, Value};

use super::figures::figures;
use super::{Exporter, json::indented};
use crate::recording::Recording;

/// A benchmark is a handler, and a measure a figure with its unit, such as `tp99-ns`. Of several runs the value is the
/// average, and the bounds are the lowest and the highest.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bmf;

/// One measure.
#[derive(Debug, Serialize)]
struct Measure {
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lower_value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upper_value: Option<f64>,
}

impl Exporter for Bmf {
    fn serialize(&self, recording: &Recording) -> Vec<u8> {
        self.serialize_runs(std::slice::from_ref(recording)).unwrap_or_default()
    }

    fn serialize_runs(&self, runs: &[Recording]) -> Option<Vec<u8>> {
        let mut benchmarks: Map<String, Value> = Map::new();
        for figure in figures(runs) {
            let Some(value) = figure.mean() else { continue };
            let range = figure.range();
            let measure = Measure {
                value,
                lower_value: range.map(|[lowest, _]| lowest),
                upper_value: range.map(|[_, highest]| highest),
            };
            let name = format!("{}-{}", figure.statistic, figure.unit());
            let of = benchmarks.entry(figure.handler).or_insert_with(|| Map::new().into());
            if let (Value::Object(measures), Ok(measure)) = (of, serde_json::to_value(measure)) {
                measures.insert(name, measure);
            }
        }
        Some(indented(&benchmarks))
    }
}
