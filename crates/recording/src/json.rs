//! Recordings and reports as JSON.

use std::path::Path;

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::Failure;

use super::Recording;

impl Recording {
    /// This recording as JSON, with a line end.
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

/// `value` as JSON in one line, for files with many numbers. It must have string keys and finite numbers alone.
pub(super) fn compact(value: &impl serde::Serialize) -> Vec<u8> {
    whole(serde_json::to_vec(value))
}

/// `value` as indented JSON, with an end of line. It must have string keys and finite numbers alone.
pub fn indented(value: &impl serde::Serialize) -> Vec<u8> {
    whole(serde_json::to_vec_pretty(value))
}

fn whole(written: serde_json::Result<Vec<u8>>) -> Vec<u8> {
    // Memory takes every byte.
    debug_assert!(written.is_ok(), "always representable: {written:?}");
    let mut bytes = written.unwrap_or_default();
    bytes.push(b'\n');
    bytes
}
