//! Packages of the host.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::paths;
use crate::process;

/// For booting a kernel on this machine's file tree.
pub(crate) const VM: &str = "bpftool busybox-static file iproute2 kmod procps python3-pip python3-venv qemu-system-x86 \
    trace-cmd udev";

/// For Python environments.
pub(crate) const PYTHON: &str = "python3-pip python3-venv";

/// For what reads exported files, and packages of other distributions; of systemd the program that judges a unit. strace shows in
/// which order files are written.
pub(crate) const READERS: &str =
    "chromium libarchive-tools python3-pip python3-venv strace systemd";

/// For kernel modules. gcc-12 builds for every series, 5.10 included.
pub(crate) const MODULE_BUILD: &str = "bc binutils gcc-12 libelf1 make pahole xz-utils zstd";

/// For BPF programs in C, and what loads them; a library of auditctl.
pub(crate) const AGENTS: &str = "clang gcc libauparse0 libbpf-dev libc6-dev";

/// For libFuzzer; for the script that imports are measured against, and what measures both.
pub(crate) const PARSERS: &str = "g++ python3 time";

/// For unpacking a kernel's packages and indexing its modules.
pub(crate) const KERNEL: &str = "kmod xz-utils zstd";

/// For the Debian package; and for the root that it is tried in.
pub(crate) const DIST: &str = "libc6-dev xz-utils";
pub(crate) const CLEAN_ROOT: &str = "mmdebstrap";

/// For the BPF object: a Rust with library sources, and the LLVM of the same version.
pub(crate) const BPF_BUILD: &str =
    "g++ gcc libc6-dev libpolly-22-dev libzstd-dev llvm-22-dev rust-web-src rustc-web zlib1g-dev";

/// For guests of arm64: their emulator, and compilers for it.
pub(crate) const ARM64: &str = "gcc-12-aarch64-linux-gnu gcc-aarch64-linux-gnu kmod libc6-dev-arm64-cross make qemu-system-arm rustc-web";

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
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !release.lines().any(|line| line == "ID=debian") {
        bail!("this machine is not Debian; install what these Debian packages hold: {names}");
    }
    let log = paths::target().join("logs/apt.log");
    for command in [&["update"][..], &[&["install", "--no-install-recommends"], packages].concat()]
    {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y"]);
        apt.args(["-o", "DPkg::Lock::Timeout=600"]).args(command);
        process::run_logged(&mut apt, &log)?;
    }
    Ok(())
}
