//! The kernels the project is tested on, unpacked from Debian's packages.
//!
//! A kernel that is too new for Debian 12's tools brings its own: compiler, C library and all that these
//! need are unpacked with it, and run in its folder as their root.

use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result};

use profiler_vm::Arch;
use profiler_vm::debian::{self, Apt, Partial, Unpacked};

use super::{Tool, mirror};
use crate::paths;
use crate::process;
use crate::series::Series;

/// The file system that a compiler runs in is the kernel's folder; these come with the headers' own
/// dependencies, which name the compiler.
const TOOLS: &str = "base-files bash coreutils dash findutils grep make mawk pahole sed";

/// Where a module's sources are seen by its own tools, below the kernel's folder.
pub(crate) const BUILD_FOLDER: &str = "build";

/// The unpacked kernel of a series.
///
/// # Errors
/// If it is not there with its headers.
pub(crate) fn kernel(series: Series) -> Result<Unpacked> {
    open(&paths::kernel(series))
}

/// The unpacked kernel in this folder.
pub(super) fn open(root: &Path) -> Result<Unpacked> {
    let found = Unpacked::open(root).filter(|kernel| kernel.headers().exists());
    found.with_context(|| format!("no kernel in {}", root.display()))
}

/// Whether it was unpacked with its own tools.
pub(crate) fn has_own_tools(kernel: &Unpacked) -> bool {
    kernel.root.join(BUILD_FOLDER).exists()
}

impl Tool for Series {
    fn is_ready(&self) -> bool {
        kernel(*self).is_ok()
    }

    fn install(&self) -> Result<()> {
        println!("set-up: reading package lists");
        let apt = mirror::apt(&paths::target().join("apt"), &[*self], Arch::HERE)?;
        install(&apt, *self, &paths::kernel(*self))
    }
}

/// Unpacks the newest kernel of a series to a folder.
pub(super) fn install(apt: &Apt, series: Series, to: &Path) -> Result<()> {
    let mut releases = apt.releases()?;
    releases.retain(|release| debian::is_of(release, &series.to_string()));
    let release = releases.pop().with_context(|| {
        format!(
            "no Linux {series} in the suite {} of this machine's mirror; see xtask/src/series.rs",
            series.suite().0
        )
    })?;
    let (packages, bytes) = apt.packages(&release, true)?;
    println!("set-up: Linux {series}: {release} ({} MiB without tools)", bytes >> 20);
    let partial = Partial::new(to)?;
    apt.download(&packages, &partial.debs())?;
    if series.has_own_tools() {
        download_tools(apt, &packages, &partial.debs())?;
    }
    partial.extract()?;
    if series.has_own_tools() {
        make_root(&partial.root())?;
    }
    Ok(debian::place(partial, &release, &packages)?)
}

/// Downloads all that the headers need to `debs`.
fn download_tools(apt: &Apt, packages: &[String], debs: &Path) -> Result<()> {
    // As if nothing were installed: not even the C library of this machine is used.
    let nothing = debs.join("nothing-installed");
    process::write(&nothing, "")?;
    process::create_dir(&debs.join("partial"))?;
    let headers = packages.iter().filter(|package| package.starts_with("linux-headers-"));
    let mut closure = apt.command("apt-get");
    closure
        .args(["-q", "-y", "--download-only", "--no-install-recommends", "install"])
        .args(["-o", &format!("Dir::State::status={}", nothing.display())])
        .args(["-o", &format!("Dir::Cache::archives={}", debs.display())])
        .args(headers)
        .args(TOOLS.split(' '));
    process::stdout(&mut closure).map(drop)
}

/// A root for the tools to run in, as the packages' own scripts would have made it.
fn make_root(root: &Path) -> Result<()> {
    let awk = root.join("usr/bin/awk");
    symlink("mawk", &awk).with_context(|| format!("cannot create {}", awk.display()))?;
    Ok(process::create_dir(&root.join(BUILD_FOLDER))?)
}
