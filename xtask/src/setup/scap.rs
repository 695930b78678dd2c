//! Sources of Falco's driver, out of Debian's package.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use profiler_vm::debian::Partial;

use super::mirror;
use crate::paths::Paths;
use crate::series::Series;

/// Debian's package with the sources of Falco's driver.
const PACKAGE: &str = "falcosecurity-scap-dkms";

/// The folder with the sources of Falco's driver.
pub(crate) fn source(paths: &Paths) -> Result<PathBuf> {
    let folder = paths.target().join("drivers/scap/usr/src");
    let absent = || format!("no sources in {}", folder.display());
    let mut entries = fs::read_dir(&folder).with_context(absent)?;
    Ok(entries.next().with_context(absent)?.with_context(absent)?.path())
}

/// Unpacks the sources of Falco's driver.
pub(crate) fn install(paths: &Paths) -> Result<()> {
    // The suite of this kernel is the one with the driver.
    let apt = mirror::apt(paths, &[Series::V6_1])?;
    let partial = Partial::new(&paths.target().join("drivers/scap"))?;
    apt.download(&[PACKAGE.to_owned()], &partial.debs())?;
    partial.extract(1)?;
    Ok(partial.place()?)
}
