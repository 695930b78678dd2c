//! Several runs of one thing, kept apart: calls of one run are correlated, so runs are what
//! statistics are made of, and they are never pooled.

use std::collections::HashSet;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::Failure;

use super::json::compact;
use super::{Recording, Tool, VERSION};

/// What the field `schema` of every series says.
pub const SERIES_SCHEMA: &str = "profiler/series";

/// Runs of one module, kernel and load, in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// Always `profiler/series`.
    #[schemars(extend("const" = SERIES_SCHEMA))]
    pub schema: String,
    /// Version of the format.
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// The program that wrote this.
    pub tool: Tool,
    /// A name for the runs, such as `baseline`; may be empty.
    pub label: String,
    /// The runs, at least one, each a whole recording whose `place` has its boot.
    #[schemars(length(min = 1))]
    pub runs: Vec<Recording>,
}

impl Series {
    /// A series of `runs`.
    pub fn new(label: impl Into<String>, runs: Vec<Recording>) -> Self {
        Self {
            schema: SERIES_SCHEMA.to_owned(),
            version: VERSION,
            tool: Tool::this(),
            label: label.into(),
            runs,
        }
    }

    /// Checks each run, that their figures are of one meter, and that no two claim one place.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), String> {
        if self.schema != SERIES_SCHEMA || self.version != VERSION {
            return Err(format!("schema: is not {SERIES_SCHEMA} version {VERSION}"));
        }
        if self.runs.is_empty() {
            return Err("runs: is empty: nothing was measured".to_owned());
        }
        let mut places = HashSet::new();
        for (number, run) in self.runs.iter().enumerate() {
            run.check().map_err(|error| format!("run {number}, {error}"))?;
            if run.meter != self.runs[0].meter {
                let [unit, first] = [run, &self.runs[0]].map(|run| run.meter.unit());
                return Err(format!(
                    "run {number}: its figures are {unit}, and those of run 0 are {first}"
                ));
            }
            if let Some(place) = &run.place
                && !places.insert((place.boot, place.order, place.part.as_deref()))
            {
                return Err(format!(
                    "run {number}: boot {}, order {} is the place of an earlier run, too",
                    place.boot, place.order
                ));
            }
        }
        Ok(())
    }

    /// This series as JSON, with a line end.
    pub fn to_json(&self) -> Vec<u8> {
        compact(self)
    }

    /// Writes it to the file `path`; an older file is replaced in one step.
    ///
    /// # Errors
    /// As [`OutputFile::open`] and [`OutputFile::commit`].
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        OutputFile::open(path)?.commit(&self.to_json())
    }
}
