//! JSON: the lossless format, which all later commands read.

use super::Exporter;
use crate::recording::Recording;
pub(crate) use crate::recording::json::indented;

/// Indented JSON with each bucket on one line, and a newline at its end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json;

impl Exporter for Json {
    fn serialize_runs(&self, runs: &[Recording]) -> Option<Vec<u8>> {
        let [recording] = runs else { return None };
        Some(recording.to_json())
    }
}
