//! CSV for Apache Otava, which looks for changes in a series of runs: a row for each run.

use super::Exporter;
use super::cell::clean;
use super::figures::figures;
use crate::recording::Recording;

/// What every row begins with: `time` is Otava's time column, the others are attributes.
const HEADER: [&str; 4] = ["time", "commit", "build_id", "kernel"];

/// A column for each figure of each handler, such as `connect_handler.tp99_ns`; `nan` where a run has none.
#[derive(Debug, Clone, Default)]
pub struct Otava {
    /// Revision of the driver's sources.
    pub commit: Option<String>,
}

impl Exporter for Otava {
    fn serialize(&self, recording: &Recording) -> Vec<u8> {
        self.serialize_runs(std::slice::from_ref(recording)).unwrap_or_default()
    }

    fn serialize_runs(&self, runs: &[Recording]) -> Option<Vec<u8>> {
        let figures = figures(runs);
        let mut writer = csv::Writer::from_writer(Vec::new());
        let mut write = |row: Vec<String>| {
            let result = writer.write_record(row);
            // Memory takes every byte, and all rows have one length.
            debug_assert!(result.is_ok(), "{result:?}");
        };
        let columns = figures.iter().map(|figure| {
            let name = format!("{}.{}_{}", figure.handler, figure.statistic, figure.unit());
            clean(&name).into_owned()
        });
        write(HEADER.into_iter().map(str::to_owned).chain(columns).collect());
        for (at, run) in runs.iter().enumerate() {
            let fact = |fact: Option<&str>| clean(fact.unwrap_or_default()).into_owned();
            let build = run.modules.first().and_then(|module| module.build_id.as_deref());
            let facts = [
                run.started.to_string(),
                fact(self.commit.as_deref()),
                fact(build),
                fact(run.host.kernel_release.as_deref()),
            ];
            let value = |value: Option<f64>| value.unwrap_or(f64::NAN).to_string().to_lowercase();
            let values = figures.iter().map(|figure| value(figure.values[at]));
            write(facts.into_iter().chain(values).collect());
        }
        Some(writer.into_inner().unwrap_or_default())
    }
}
