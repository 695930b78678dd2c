//! The plugin that QEMU loads (`profiler-qemu`), which this program carries with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::plan::CountingFiles;

/// A shared library; `build.rs` compiles it.
const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/profiler-qemu.so"));

/// The plugin in a folder that the guest does not have: QEMU runs it on the host, and a driver in the guest can write to all that
/// is shared with it.
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
    pub(super) fn argument(&self, CountingFiles { symbols, counts }: &CountingFiles) -> String {
        // A comma in a value is doubled.
        let value = |path: &Path| path.to_string_lossy().replace(',', ",,");
        format!("{},symbols={},counts={}", value(&self.0), value(symbols), value(counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lies_in_its_folder_and_not_with_what_the_guest_can_write_to() {
        let [folder, shared] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [symbols, counts] = ["symbols", "counts"].map(|name| shared.path().join(name));
        let plugin = Plugin::write(folder.path()).unwrap();
        let argument = plugin.argument(&CountingFiles { symbols, counts });
        let file = PathBuf::from(argument.split(',').next().unwrap());
        assert_eq!(fs::read(&file).unwrap(), PLUGIN);
        assert!(file.starts_with(folder.path()), "{argument}");
    }
}
