//! Installs what the other subcommands need, if it is missing.
//!
//! Each part is printed before it is installed. Host packages need root and Debian; all the rest lands under `target/`.

mod apt;
pub(crate) mod arm64;
mod kernels;
mod mirror;
pub(crate) mod tools;

use std::fs::File;

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use nix::fcntl::{Flock, FlockArg};

use crate::paths;
use crate::process;
use crate::series::Series;
use crate::stop;

pub(crate) use kernels::{BUILD_FOLDER, has_own_tools, kernel};
pub(crate) use tools::{AUDIT, BPF_LINKER, CARGO_DEB, LLVM_PREFIX, MDBOOK, PROMETHEUS};

/// A part of the set-up.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    what: &'static str,
    /// Packages of this machine.
    packages: &'static str,
    /// What lands below `target/`.
    tool: Option<&'a dyn Tool>,
}

/// What is installed below `target/`.
pub(crate) trait Tool: Sync {
    /// Whether it is there, in the right version.
    fn is_ready(&self) -> bool;
    fn install(&self) -> Result<()>;
}

impl<'a> Part<'a> {
    const fn new(what: &'static str, packages: &'static str, tool: &'a dyn Tool) -> Self {
        Self { what, packages, tool: Some(tool) }
    }

    /// One kernel: image, modules and headers.
    pub(crate) const fn kernel(series: &'a Series) -> Self {
        Self::new("a kernel of Debian with its headers", "kmod xz-utils zstd", series)
    }
}

/// For booting a kernel on this machine's file tree.
pub(crate) const VM: Part<'_> = Part::new(
    "virtme-ng, by pip",
    "bpftool busybox-static file iproute2 kmod procps python3-pip python3-venv qemu-system-x86 trace-cmd udev",
    &tools::VIRTME,
);
/// For kernel modules. gcc-12 builds for every series, 5.10 included.
pub(crate) const MODULE_BUILD: Part<'_> =
    Part { what: "", packages: "bc binutils gcc-12 libelf1 make pahole xz-utils zstd", tool: None };
/// For BPF programs in C of tests of agents, and what loads them; auditctl and its library.
pub(crate) const AGENTS: Part<'_> =
    Part::new("auditctl", "clang gcc libauparse0 libbpf-dev libc6-dev", &AUDIT);
/// For what reads exported files, and packages of other distributions; of systemd the program that judges a unit. strace shows in
/// which order files are written.
pub(crate) const READERS: Part<'_> = Part::new(
    "other readers of exported files, and Playwright, by pip",
    "chromium libarchive-tools python3-pip python3-venv strace systemd",
    &tools::READERS,
);
pub(crate) const LINTERS: Part<'_> = Part::new(
    "linters of scripts, workflows and dependencies, by pip",
    "python3-pip python3-venv",
    &tools::LINTERS,
);
pub(crate) const SCRAPER: Part<'_> = Part::new("Prometheus", "", &PROMETHEUS);
/// For libFuzzer; for the script that imports are measured against, and what measures both.
pub(crate) const PARSERS: Part<'_> = Part { what: "", packages: "g++ python3 time", tool: None };
/// For the BPF object: a Rust with library sources, and the LLVM of the same version.
pub(crate) const BPF_BUILD: Part<'_> = Part::new(
    "bpf-linker, by cargo (minutes)",
    "g++ gcc libc6-dev libpolly-22-dev libzstd-dev llvm-22-dev rust-web-src rustc-web zlib1g-dev",
    &BPF_LINKER,
);
/// For guests of arm64: their emulator, and compilers for it.
pub(crate) const ARM64: Part<'_> = Part::new(
    "kernels and a Rust library of arm64",
    "gcc-12-aarch64-linux-gnu gcc-aarch64-linux-gnu kmod libc6-dev-arm64-cross make qemu-system-arm rustc-web",
    &arm64::Arm64,
);
pub(crate) const BOOK: Part<'_> = Part::new("mdBook, by cargo (minutes)", "", &MDBOOK);
/// For the Debian package; and for the root that it is tried in.
pub(crate) const DIST: Part<'_> =
    Part::new("cargo-deb, by cargo (minutes)", "libc6-dev mmdebstrap xz-utils", &CARGO_DEB);

/// All parts but those that only `book` and `dist` need. The linters come first: `.ci/run` lints while the others are installed.
pub(crate) fn all() -> Vec<Part<'static>> {
    let kernels = Series::value_variants().iter().map(Part::kernel);
    [LINTERS, VM, MODULE_BUILD, AGENTS, READERS, SCRAPER, PARSERS]
        .into_iter()
        .chain(kernels)
        .chain([BPF_BUILD, ARM64])
        .collect()
}

/// Installs what is missing of `parts`; prints nothing if nothing is. An error after a signal: each VM checks its parts.
pub(crate) fn ensure(parts: &[Part<'_>]) -> Result<()> {
    stop::check()?;
    let packages = || apt::missing(parts.iter().flat_map(|part| part.packages.split(' ')));
    let mut tools = parts.iter().filter_map(|part| part.tool);
    if packages()?.is_empty() && tools.all(|tool| tool.is_ready()) {
        return Ok(());
    }
    let _lock = lock()?;
    // Another xtask may have installed it meanwhile.
    let packages = packages()?;
    if !packages.is_empty() {
        println!("set-up: on this machine, by apt: {}", packages.join(" "));
        apt::install(&packages)?;
    }
    for part in parts {
        if let Some(tool) = part.tool.filter(|tool| !tool.is_ready()) {
            println!("set-up: below target/: {}", part.what);
            tool.install()?;
        }
    }
    Ok(())
}

/// Waits for any other xtask that installs or builds under `target/`: two at once would collide in
/// dpkg and in the folders. Held until dropped.
pub(crate) fn lock() -> Result<Flock<File>> {
    process::create_dir(&paths::target())?;
    let path = paths::target().join("xtask.lock");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .with_context(|| format!("cannot lock {}", path.display()))
}
