//! What every format does.

use crate::recording::Recording;

/// A format.
pub trait Exporter {
    /// Runs in one document, kept apart; `None` if there are several and the format holds one. Equal runs give equal bytes.
    fn serialize_runs(&self, runs: &[Recording]) -> Option<Vec<u8>>;

    /// The whole of `recording` in this format.
    fn serialize(&self, recording: &Recording) -> Vec<u8> {
        self.serialize_runs(std::slice::from_ref(recording)).unwrap_or_default()
    }
}
