//! What builds for arm64 on this machine and what runs there: a cross compiler, Debian's Rust library of the version of its compiler
//! here, and a kernel with headers.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use profiler_vm::Arch;
use profiler_vm::debian::Unpacked;

use super::{Tool, kernels, mirror};
use crate::paths;
use crate::process;
use crate::series::Series;

/// The kernels.
pub(crate) const KERNELS: [Series; 2] = [Series::V6_1, Series::V6_12];

/// The Rust library, and the compiler that it has to be of.
const LIBRARY: &str = "libstd-rust-web-dev";
const COMPILER: &str = "rustc-web";

fn library() -> PathBuf {
    paths::arm64().join("rust")
}

/// What rustc takes as its root.
pub(crate) fn sysroot() -> PathBuf {
    library().join("usr")
}

fn kernel_root(series: Series) -> PathBuf {
    paths::arm64().join(series.to_string())
}

/// The kernel of a series, if it is there with its headers.
pub(crate) fn kernel(series: Series) -> Result<Unpacked> {
    kernels::open(&kernel_root(series))
}

/// All of it but the packages of this machine.
pub(super) struct Arm64;

impl Tool for Arm64 {
    fn is_ready(&self) -> bool {
        KERNELS.iter().all(|series| kernel(*series).is_ok()) && library().exists()
    }

    fn install(&self) -> Result<()> {
        let apt = mirror::apt(&paths::arm64().join("apt"), &KERNELS, Arch::Arm64)?;
        let mut version = Command::new("dpkg-query");
        let version = process::stdout(version.args(["-W", "-f", "${Version}", COMPILER]))?;
        let to = library();
        if !to.exists() {
            mirror::unpack(&apt, &format!("{LIBRARY}={}", version.trim()), &to)?;
        }
        for series in KERNELS.into_iter().filter(|series| kernel(*series).is_err()) {
            kernels::install(&apt, series, &kernel_root(series))?;
        }
        Ok(())
    }
}

/// File name of the program of arm64's guests, where `profiler` looks for it.
pub(crate) const GUEST: &str = "profiler-aarch64";

/// Puts the program of arm64's guests beside this machine's release build, which looks there first, and into the user's cache.
pub(crate) fn keep_program(program: &Path) -> Result<()> {
    let cache = std::env::var("XDG_CACHE_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| home + "/.cache"))
        .context("HOME is not set")?;
    for folder in [paths::target().join("release"), Path::new(&cache).join("profiler/guests")] {
        process::create_dir(&folder)?;
        let file = folder.join(GUEST);
        process::copy(program, &file)?;
        println!("guest: {}", file.display());
    }
    Ok(())
}
