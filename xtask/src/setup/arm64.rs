//! What builds for arm64 on this machine and what runs there: a cross compiler, Debian's Rust library of the version of its compiler
//! here, and a kernel with headers.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use profiler_vm::Arch;
use profiler_vm::debian::Unpacked;

use super::{kernels, mirror};
use crate::paths::Paths;
use crate::process;
use crate::series::Series;

/// The kernels.
pub(crate) const KERNELS: [Series; 2] = [Series::V6_1, Series::V6_12];

/// The Rust library, and the compiler that it has to be of.
const LIBRARY: &str = "libstd-rust-web-dev";
const COMPILER: &str = "rustc-web";

/// What rustc takes as its root.
pub(crate) fn sysroot(paths: &Paths) -> PathBuf {
    library(paths).join("usr")
}

fn library(paths: &Paths) -> PathBuf {
    paths.arm64().join("rust")
}

fn kernel_root(paths: &Paths, series: Series) -> PathBuf {
    paths.arm64().join(series.as_str())
}

/// The kernel of a series, if it is there with its headers.
pub(crate) fn kernel(paths: &Paths, series: Series) -> Result<Unpacked> {
    kernels::open(&kernel_root(paths, series))
}

/// Whether all but the packages of this machine is there.
pub(super) fn is_ready(paths: &Paths) -> bool {
    KERNELS.iter().all(|series| kernel(paths, *series).is_ok()) && library(paths).exists()
}

/// Unpacks the library and the kernels.
pub(super) fn install(paths: &Paths) -> Result<()> {
    let apt = mirror::configured(&paths.arm64().join("apt"), &KERNELS, Arch::Arm64)?;
    apt.update()?;
    let mut version = Command::new("dpkg-query");
    let version = process::stdout(version.args(["-W", "-f", "${Version}", COMPILER]))?;
    let to = library(paths);
    if !to.exists() {
        mirror::unpack_of(&apt, &format!("{LIBRARY}={}", version.trim()), &to)?;
    }
    let missing = KERNELS.into_iter().filter(|series| kernel(paths, *series).is_err());
    missing.into_iter().try_for_each(|series| {
        kernels::install_from(&apt, series, Arch::Arm64, &kernel_root(paths, series))
    })
}

/// Puts the program of its guests beside this machine's release build, and in the user's cache if there is one.
pub(crate) fn keep_program(paths: &Paths, program: &std::path::Path) -> Result<Vec<PathBuf>> {
    const NAME: &str = "profiler-aarch64";
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache =
        cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let cache = cache.map(|cache| cache.join("profiler/guests"));
    let mut kept = Vec::new();
    for folder in std::iter::once(paths.target().join("release")).chain(cache) {
        process::create_dir(&folder)?;
        let file = folder.join(NAME);
        fs::copy(program, &file).with_context(|| format!("cannot write {}", file.display()))?;
        kept.push(file);
    }
    Ok(kept)
}
