//! The plugin that QEMU loads (`profiler-qemu`), which this program carries with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::machine::value;

/// A shared library; `build.rs` compiles it.
const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/profiler-qemu.so"));

/// The plugin in a folder of the host, of which a guest sees nothing.
pub(super) struct Plugin(PathBuf);

impl Plugin {
    /// Writes it to the folder.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write(folder: &Path) -> io::Result<Self> {
        let file = folder.join("profiler-qemu.so");
        fs::write(&file, PLUGIN)?;
        Ok(Self(file))
    }

    /// QEMU's argument for it.
    pub(super) fn argument(&self, symbols: &Path, counts: &Path) -> String {
        let [plugin, symbols, counts] = [&self.0, symbols, counts].map(value);
        format!("{plugin},instruments=on,symbols={symbols},counts={counts}")
    }
}
