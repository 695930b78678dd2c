//! The gated figures of each handler over runs, for formats that trackers of benchmarks read.

use crate::recording::{HandlerRecording, Meter, Recording};
use crate::verdict::{Statistic, subject};

/// One figure of a handler.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    /// The handler: with its module where others have one of that name, and with its part where runs have one.
    pub(super) handler: String,
    /// The figure.
    pub(super) statistic: Statistic,
    /// What its unit is.
    pub(super) meter: Meter,
    /// Its value in each run; `None` where the handler was not called.
    pub(super) values: Vec<Option<f64>>,
}

impl Figure {
    /// `ns` or `instructions`.
    pub(super) fn unit(&self) -> &'static str {
        self.statistic.unit(self.meter)
    }

    /// The average over runs; `None` without a call.
    pub(super) fn mean(&self) -> Option<f64> {
        let values: Vec<f64> = self.values.iter().copied().flatten().collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// The lowest and the highest of several runs.
    pub(super) fn range(&self) -> Option<[f64; 2]> {
        let values = || self.values.iter().copied().flatten();
        let ends = [values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max)];
        (values().count() > 1).then_some(ends)
    }
}

/// All figures of all handlers, in the order in which they come.
pub(super) fn figures(runs: &[Recording]) -> Vec<Figure> {
    let mut figures: Vec<Figure> = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        for handler in &run.handlers {
            let name = name(run, handler);
            for statistic in Statistic::GATED {
                let is_it = |figure: &Figure| {
                    (figure.handler == name, figure.statistic, figure.meter)
                        == (true, statistic, run.meter)
                };
                let found = figures.iter().position(is_it).unwrap_or_else(|| {
                    let (handler, values) = (name.clone(), vec![None; runs.len()]);
                    figures.push(Figure { handler, statistic, meter: run.meter, values });
                    figures.len() - 1
                });
                figures[found].values[at] = statistic.of(handler).map(|observed| observed.value);
            }
        }
    }
    figures
}

fn name(run: &Recording, handler: &HandlerRecording) -> String {
    let part = run.place.as_ref().and_then(|place| place.part.as_deref());
    let namesakes = run.handlers.iter().filter(|other| other.name == handler.name).count();
    match &handler.module {
        Some(module) if namesakes > 1 => subject(part, &format!("{module}:{}", handler.name)),
        _ => subject(part, &handler.name),
    }
}
