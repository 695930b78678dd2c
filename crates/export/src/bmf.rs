//! Bencher Metric Format: a JSON object of benchmarks, each with measures by name (bencher.dev/bmf.json).

use std::collections::BTreeMap;

use serde::Serialize;

use super::json::indented;
use profiler_recording::{HandlerRecording, Recording};
use profiler_verdict::{Statistic, subject};

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

/// The handler's name, with its module's only among namesakes: it does not change when another module is measured, too.
fn own_name(run: &Recording, handler: &HandlerRecording) -> String {
    let namesakes = run.handlers.iter().filter(|other| other.name == handler.name).count();
    match &handler.module {
        Some(module) if namesakes > 1 => format!("{module}:{}", handler.name),
        _ => handler.name.clone(),
    }
}

/// A benchmark is a handler, and a measure a figure with its unit, such as `tp99-ns`. Of several runs the value is the
/// average, and the bounds are the lowest and the highest.
pub(super) fn bmf(runs: &[Recording]) -> Vec<u8> {
    let mut figures: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for run in runs {
        for handler in &run.handlers {
            for statistic in Statistic::GATED {
                let Some(observed) = statistic.of(handler) else { continue };
                let measure = format!("{statistic}-{}", statistic.unit(run.meter));
                let name = subject(run.part(), &own_name(run, handler));
                figures.entry((name, measure)).or_default().push(observed.value);
            }
        }
    }
    let mut benchmarks: BTreeMap<String, BTreeMap<String, Measure>> = BTreeMap::new();
    for ((name, measure), runs) in figures {
        benchmarks.entry(name).or_default().insert(measure, Measure::of(&runs));
    }
    indented(&benchmarks)
}
