//! Bencher Metric Format: a JSON object of benchmarks, each with measures by name (bencher.dev/bmf.json).

use std::collections::BTreeMap;

use serde::Serialize;

use super::json::indented;
use crate::recording::{HandlerRecording, Recording};
use crate::verdict::{Statistic, subject};

/// One measure.
#[derive(Debug, Serialize)]
struct Measure {
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lower_value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upper_value: Option<f64>,
}

impl Measure {
    fn of(runs: &[f64]) -> Self {
        let several = runs.len() > 1;
        Self {
            value: runs.iter().sum::<f64>() / runs.len() as f64,
            lower_value: several.then(|| runs.iter().copied().fold(f64::MAX, f64::min)),
            upper_value: several.then(|| runs.iter().copied().fold(f64::MIN, f64::max)),
        }
    }
}

/// A benchmark is a handler, and a measure a figure with its unit, such as `tp99-ns`. Of several runs the value is the
/// average, and the bounds are the lowest and the highest.
pub(super) fn bmf(runs: &[Recording]) -> Vec<u8> {
    let mut benchmarks: BTreeMap<String, BTreeMap<String, Vec<f64>>> = BTreeMap::new();
    for run in runs {
        for handler in &run.handlers {
            for statistic in Statistic::GATED {
                let Some(observed) = statistic.of(handler) else { continue };
                let measure = format!("{statistic}-{}", statistic.unit(run.meter));
                let of = benchmarks.entry(name(run, handler)).or_default();
                of.entry(measure).or_default().push(observed.value);
            }
        }
    }
    let shown = |measures: BTreeMap<String, Vec<f64>>| -> BTreeMap<String, Measure> {
        measures.into_iter().map(|(name, runs)| (name, Measure::of(&runs))).collect()
    };
    let benchmarks: BTreeMap<String, _> =
        benchmarks.into_iter().map(|(name, measures)| (name, shown(measures))).collect();
    indented(&benchmarks)
}

/// The handler: with its module where others have one of that name, and with its part where runs have one.
fn name(run: &Recording, handler: &HandlerRecording) -> String {
    let namesakes = run.handlers.iter().filter(|other| other.name == handler.name).count();
    match &handler.module {
        Some(module) if namesakes > 1 => subject(run.part(), &format!("{module}:{}", handler.name)),
        _ => subject(run.part(), &handler.name),
    }
}
