//! Sources of Falco's driver, out of Debian's package.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::archive::{Apt, extract};
use crate::paths::Paths;
use crate::process;
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
    let apt = Apt::configure(paths, &[Series::V6_1])?;
    apt.update()?;
    let debs = apt.empty_debs()?;
    let mut download = apt.command("apt-get");
    download.args(["-q", "download", PACKAGE]).current_dir(&debs);
    process::run_logged(&mut download, &apt.log)?;
    let folder = paths.target().join("drivers/scap");
    let partial = folder.with_extension("partial");
    process::empty_dir(&partial)?;
    extract(&debs, &partial)?;
    process::remove_dir(&folder)?;
    fs::rename(&partial, &folder)
        .with_context(|| format!("cannot move the sources to {}", folder.display()))?;
    process::remove_dir(&debs)
}
