//! Sources of Falco's driver, out of Debian's package.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::mirror;
use crate::paths::Paths;

/// The folder with the sources of Falco's driver.
pub(crate) fn source(paths: &Paths) -> Result<PathBuf> {
    let folder = paths.target().join("drivers/scap/usr/src");
    let absent = || format!("no sources in {}", folder.display());
    let mut entries = fs::read_dir(&folder).with_context(absent)?;
    Ok(entries.next().with_context(absent)?.with_context(absent)?.path())
}

/// Unpacks the sources of Falco's driver.
pub(crate) fn install(paths: &Paths) -> Result<()> {
    mirror::unpack(paths, "falcosecurity-scap-dkms", &paths.target().join("drivers/scap"))
}
