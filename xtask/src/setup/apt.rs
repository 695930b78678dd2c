//! Packages of the host.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;

/// Those of `wanted` that are not installed, each once.
pub(crate) fn missing(wanted: impl Iterator<Item = &'static str>) -> Result<Vec<&'static str>> {
    let mut wanted: BTreeSet<&'static str> = wanted.filter(|name| !name.is_empty()).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${Package} ${db:Status-Status}\n"]).args(&wanted);
    // It exits 1 as soon as one package is unknown; what it lists is what counts.
    let output = process::capture(&mut query).context("the set-up needs Debian")?;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        wanted.remove(line.strip_suffix(" installed").unwrap_or_default());
    }
    Ok(wanted.into_iter().collect())
}

/// Installs packages on this machine. apt runs strictly one at a time: some images delete the
/// archives after every update, also those of an install under way.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "these packages are missing and only root can install them; run\n  \
             sudo apt-get install --no-install-recommends {names}\nand start again"
        );
    }
    for command in [&["update"][..], &[&["install", "--no-install-recommends"], packages].concat()]
    {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive").args(["-qq", "-y"]);
        process::run(apt.args(["-o", "DPkg::Lock::Timeout=600"]).args(command))?;
    }
    Ok(())
}
