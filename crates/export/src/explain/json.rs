//! Everything as it is stored: `profiler/explain`.

use schemars::JsonSchema;
use serde::Serialize;

use profiler_explain::{Explained, NamedRuns};
use profiler_recording::measure::Losses;
use profiler_recording::{HandlerRecording, Meter, Tool};

/// What the field `schema` says.
pub const EXPLAIN_SCHEMA: &str = "profiler/explain";
/// Version of the format.
pub const EXPLAIN_VERSION: u32 = 1;

/// Where the instructions or the time of handlers go, in one recording or in two.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ExplainReport {
    /// Always `profiler/explain`.
    #[schemars(extend("const" = EXPLAIN_SCHEMA))]
    pub schema: String,
    /// Version of the format.
    #[schemars(extend("const" = EXPLAIN_VERSION))]
    pub version: u32,
    /// The program that wrote this.
    pub tool: Tool,
    /// The unit of all figures but counts of calls: `instructions`, or `ns` where a live machine was traced.
    pub unit: String,
    /// The recording, or that of the baseline and that of the candidate.
    pub recordings: Vec<RecordingRecord>,
    /// What a reader has to know.
    pub notes: Vec<String>,
    pub handlers: Vec<Explained>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RecordingRecord {
    /// Its file, or what was traced.
    pub name: String,
    /// Runs that were summed.
    pub runs: usize,
    /// What of the handler's calls is not in the tree, where a live machine was traced; `overrun` is events that were
    /// dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<Losses>,
}

/// The handler that was traced.
fn live<'a>(recording: &NamedRuns<'a>) -> Option<&'a HandlerRecording> {
    let live = recording.meter() == Meter::Probes;
    recording.runs.first().filter(|_| live)?.handlers.first()
}

impl ExplainReport {
    /// What was explained of `recordings`.
    pub fn new(recordings: &[NamedRuns<'_>], handlers: Vec<Explained>, notes: Vec<String>) -> Self {
        let records = recordings.iter().map(|recording| RecordingRecord {
            name: recording.name.clone(),
            runs: recording.runs.len(),
            losses: live(recording).map(|handler| handler.losses),
        });
        let unit = match recordings.first().map(NamedRuns::meter) {
            Some(Meter::Probes) => "ns",
            _ => "instructions",
        };
        Self {
            schema: EXPLAIN_SCHEMA.to_owned(),
            version: EXPLAIN_VERSION,
            tool: Tool::this(),
            unit: unit.to_owned(),
            recordings: records.collect(),
            notes,
            handlers,
        }
    }
}
