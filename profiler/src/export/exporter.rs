//! What every format does.

use crate::recording::Recording;

/// A format.
pub trait Exporter {
    /// The whole of `recording` in this format. Equal recordings give equal bytes.
    fn serialize(&self, recording: &Recording) -> Vec<u8>;

    /// Several runs in one document, kept apart; `None` if the format holds only one run.
    fn serialize_runs(&self, _runs: &[Recording]) -> Option<Vec<u8>> {
        None
    }
}
