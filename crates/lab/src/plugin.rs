//! The plugin that QEMU loads (`crates/qemu`), which this program carries with it.

use std::path::Path;

use super::machine::value;

/// A shared library; `build.rs` compiles it. It is a file on the host, of which a guest sees nothing.
pub(super) const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/profiler-qemu.so"));

/// QEMU's argument for the plugin in a file.
pub(super) fn argument(plugin: &Path, symbols: &Path, counts: &Path) -> String {
    let [plugin, symbols, counts] = [plugin, symbols, counts].map(value);
    format!("{plugin},instruments=on,symbols={symbols},counts={counts}")
}
