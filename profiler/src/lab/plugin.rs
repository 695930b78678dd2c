//! The plugin that QEMU loads (`profiler-qemu`), which this program carries with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::plan::CountingFiles;

/// A shared library; `build.rs` compiles it.
const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/profiler-qemu.so"));

/// Writes it into `folder`.
///
/// # Errors
/// If the file cannot be written.
pub fn write(folder: &Path) -> io::Result<()> {
    fs::write(path(folder), PLUGIN)
}

/// QEMU's argument for it.
pub(super) fn argument(folder: &Path, CountingFiles { symbols, counts }: &CountingFiles) -> String {
    // A comma in a value is doubled.
    let value = |path: &Path| path.to_string_lossy().replace(',', ",,");
    format!("{},symbols={},counts={}", value(&path(folder)), value(symbols), value(counts))
}

fn path(folder: &Path) -> PathBuf {
    folder.join("profiler-qemu.so")
}
