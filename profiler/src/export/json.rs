//! JSON: the lossless format, which all later commands read.

use super::Exporter;
use crate::recording::Recording;
pub(crate) use crate::recording::json::indented;

/// Indented JSON with each bucket on one line, and a newline at its end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json;

impl Exporter for Json {
    fn serialize(&self, recording: &Recording) -> Vec<u8> {
        recording.to_json()
    }
}
