//! bpf-linker, built against Debian's LLVM.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::paths::Paths;
use crate::process;

/// The version that reads the bitcode of the compilers in use.
pub(crate) const VERSION: &str = "0.13.0";

/// The major version of LLVM that bpf-linker is built with. A compiler with a newer one writes
/// bitcode that it cannot read.
pub(crate) const LLVM_MAJOR: u32 = 22;

/// Where Debian puts that LLVM.
pub(crate) const LLVM_PREFIX: &str = "/usr/lib/llvm-22";

fn manifest(paths: &Paths) -> PathBuf {
    paths.tools().join(".crates.toml")
}

/// True when the pinned version is there.
pub(crate) fn is_ready(paths: &Paths) -> bool {
    let entry = format!("\"bpf-linker {VERSION} ");
    paths.tools().join("bin/bpf-linker").exists()
        && fs::read_to_string(manifest(paths)).is_ok_and(|text| text.contains(&entry))
}

/// Builds and installs it under `target/tools`.
pub(crate) fn install(paths: &Paths) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo
        // Unoptimised takes half the time to build, and links a small object as fast, and to the same bytes.
        .args(["install", "bpf-linker", "--locked", "--force", "--debug", "--version", VERSION])
        .args(["--no-default-features", "--features", &format!("llvm-{LLVM_MAJOR}"), "--root"])
        .arg(paths.tools())
        .env("LLVM_PREFIX", LLVM_PREFIX)
        // Its own folder: the project's flags and lock do not apply.
        .env("CARGO_TARGET_DIR", paths.target().join("bpf-linker-build"))
        .current_dir("/");
    let log = paths.target().join("logs").join("bpf-linker.log");
    process::run_logged(&mut cargo, &log)?;
    process::remove_dir(&paths.target().join("bpf-linker-build"))
}
