//! The plugin that QEMU loads (`profiler-qemu`), which this program carries with it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::plan::CountingFiles;

/// A shared library; `build.rs` compiles it.
const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/profiler-qemu.so"));

/// The plugin in a folder of its own, which the guest does not have: QEMU runs it on the host, and a driver in the guest can
/// write to all that is shared with it. The folder is removed with this.
pub(super) struct Plugin(TempDir);

impl Plugin {
    /// Writes it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn new() -> io::Result<Self> {
        let mut folder = tempfile::Builder::new();
        let folder = folder.prefix("profiler-qemu-").permissions(Permissions::from_mode(0o700));
        let folder = folder.tempdir()?;
        fs::write(path(folder.path()), PLUGIN)?;
        Ok(Self(folder))
    }

    /// QEMU's argument for it.
    pub(super) fn argument(&self, CountingFiles { symbols, counts }: &CountingFiles) -> String {
        // A comma in a value is doubled.
        let value = |path: &Path| path.to_string_lossy().replace(',', ",,");
        format!(
            "{},symbols={},counts={}",
            value(&path(self.0.path())),
            value(symbols),
            value(counts)
        )
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("profiler-qemu.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lies_where_the_guest_cannot_write_and_goes_with_its_boot() {
        let shared = tempfile::tempdir().unwrap();
        let [symbols, counts] = ["symbols", "counts"].map(|name| shared.path().join(name));
        let plugin = Plugin::new().unwrap();
        let argument = plugin.argument(&CountingFiles { symbols, counts });
        let file = PathBuf::from(argument.split(',').next().unwrap());
        assert_eq!(fs::read(&file).unwrap(), PLUGIN);
        assert!(!file.starts_with(shared.path()), "{argument}");
        let folder = fs::metadata(file.parent().unwrap()).unwrap();
        assert_eq!(folder.permissions().mode() & 0o777, 0o700);
        drop(plugin);
        assert!(!file.exists());
    }
}
