//! Installs what the other subcommands need, if it is missing.
//!
//! The plan is printed before anything is touched. Host packages need root and Debian; all the
//! rest lands under `target/`.

mod apt;
pub(crate) mod arm64;
pub(crate) mod audit;
mod cargo_tool;
mod kernels;
mod mirror;
pub(crate) mod prometheus;
mod scap;
pub(crate) mod venv;

use std::fs::File;

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};

use crate::dist;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::stop;

pub(crate) use cargo_tool::{BPF_LINKER, CARGO_DEB, LLVM_MAJOR, LLVM_PREFIX, MDBOOK};
pub(crate) use kernels::{BUILD_FOLDER, has_own_tools, kernel};
pub(crate) use scap::source as scap_source;
use venv::Venv;

/// A part of the set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// QEMU, virtme-ng and what they need on the host.
    Vm,
    /// The Python environment with LTP's runner, which tests on the host use.
    Python,
    /// Compiler and tools for kernel modules.
    ModuleBuild,
    /// What tests of agents need: compiler and library of a BPF program, and auditctl.
    Agents,
    /// One kernel: image, modules and headers.
    Kernel(Series),
    /// Other programs that read what is exported, a browser among them.
    Readers,
    /// What looks at scripts, workflows and dependencies.
    Linters,
    /// Prometheus, which scrapes what `profiler serve` exposes.
    Prometheus,
    /// Tools that fuzz the parsers and measure their speed.
    Parsers,
    /// Other tools that time functions of the kernel.
    Peers,
    /// Sources of Falco's driver.
    ScapDriver,
    /// Debian's Rust with its library sources, LLVM and bpf-linker.
    BpfBuild,
    /// Compilers for arm64, its emulator and kernels.
    Arm64,
    /// mdBook.
    Book,
    /// cargo-deb.
    Dist,
    /// A Debian root that packages are tried in.
    CleanRoot,
}

impl Part {
    /// All parts but those that only `bench --peers`, `book` and `dist` need.
    pub(crate) fn all() -> Vec<Self> {
        let mut parts = vec![
            Self::Vm,
            Self::ModuleBuild,
            Self::Agents,
            Self::Readers,
            Self::Linters,
            Self::Prometheus,
            Self::Parsers,
        ];
        parts.extend(Series::ALL.map(Self::Kernel));
        parts.extend([Self::ScapDriver, Self::BpfBuild, Self::Arm64]);
        parts
    }

    fn packages(self) -> &'static str {
        match self {
            Self::Vm => apt::VM,
            Self::Python | Self::Linters => apt::PYTHON,
            Self::ModuleBuild => apt::MODULE_BUILD,
            Self::Agents => apt::AGENTS,
            Self::Kernel(_) => apt::KERNEL,
            Self::Readers => apt::READERS,
            Self::Parsers => apt::PARSERS,
            Self::Peers => apt::PEERS,
            Self::ScapDriver | Self::Prometheus | Self::Book => "",
            Self::BpfBuild => apt::BPF_BUILD,
            Self::Arm64 => apt::ARM64,
            Self::Dist => apt::DIST,
            Self::CleanRoot => apt::CLEAN_ROOT,
        }
    }

    /// Whether all but the packages is there.
    fn is_ready(self, paths: &Paths) -> bool {
        match self {
            Self::Vm | Self::Python => Venv::virtme(paths).is_ready(),
            Self::Readers => Venv::readers(paths).is_ready(),
            Self::Linters => Venv::linters(paths).is_ready(),
            Self::Kernel(series) => kernels::open(paths, series).is_some(),
            Self::ScapDriver => scap::source(paths).is_ok(),
            Self::Prometheus => prometheus::is_ready(paths),
            Self::BpfBuild => BPF_LINKER.is_ready(paths),
            Self::Arm64 => arm64::is_ready(paths),
            Self::Book => MDBOOK.is_ready(paths),
            Self::Dist => CARGO_DEB.is_ready(paths),
            Self::CleanRoot => dist::clean_root(paths).exists(),
            Self::Agents => audit::is_ready(paths),
            Self::ModuleBuild | Self::Parsers | Self::Peers => true,
        }
    }

    /// Where it is installed, and what it is.
    fn describe(self, paths: &Paths) -> String {
        let below = |name: &str| paths.target().join(name).display().to_string();
        match self {
            Self::Vm | Self::Python => Venv::virtme(paths).describe(),
            Self::Readers => Venv::readers(paths).describe(),
            Self::Linters => Venv::linters(paths).describe(),
            Self::Kernel(series) => format!(
                "{}: Debian's Linux {series}, unpacked, not installed",
                paths.kernel(series).display()
            ),
            Self::ScapDriver => {
                format!("{}: sources of Falco's driver, of Debian 12", below("drivers"))
            }
            Self::Prometheus => {
                format!("{}: Debian's Prometheus, unpacked, not installed", below("tools"))
            }
            Self::BpfBuild => BPF_LINKER.describe(paths),
            Self::Arm64 => format!("{}: kernels and a Rust library of arm64", below("arm64")),
            Self::Book => MDBOOK.describe(paths),
            Self::Dist => CARGO_DEB.describe(paths),
            Self::CleanRoot => {
                format!("{}: a clean Debian root", dist::clean_root(paths).display())
            }
            Self::Agents => {
                format!("{}: Debian's auditctl, unpacked, not installed", below("tools"))
            }
            Self::ModuleBuild | Self::Parsers | Self::Peers => "packages alone".to_owned(),
        }
    }

    /// Installs it; of several `missing` kernels all at once.
    fn install(self, paths: &Paths, missing: &[Self]) -> Result<()> {
        match self {
            Self::Vm | Self::Python => Venv::virtme(paths).install(paths),
            Self::Readers => Venv::readers(paths).install(paths),
            Self::Linters => Venv::linters(paths).install(paths),
            Self::Kernel(_) => {
                let kernel = |part: &Self| match part {
                    Self::Kernel(series) => Some(*series),
                    _ => None,
                };
                kernels::install(paths, &missing.iter().filter_map(kernel).collect::<Vec<_>>())
            }
            Self::ScapDriver => scap::install(paths),
            Self::Prometheus => prometheus::install(paths),
            Self::BpfBuild => BPF_LINKER.install(paths),
            Self::Arm64 => arm64::install(paths),
            Self::Book => MDBOOK.install(paths),
            Self::Dist => CARGO_DEB.install(paths),
            Self::CleanRoot => dist::make_clean_root(paths),
            Self::Agents => audit::install(paths),
            Self::ModuleBuild | Self::Parsers | Self::Peers => Ok(()),
        }
    }
}

/// Installs what is missing of `parts`; prints nothing if nothing is. An error after a signal: each VM asks for its parts.
pub(crate) fn ensure(paths: &Paths, parts: &[Part]) -> Result<()> {
    stop::check()?;
    let find = || -> Result<_> {
        let packages = parts.iter().flat_map(|part| part.packages().split_whitespace());
        let is_missing = |part: &Part| !part.is_ready(paths);
        let missing: Vec<Part> = parts.iter().copied().filter(is_missing).collect();
        Ok((apt::missing(packages)?, missing))
    };
    let (packages, missing) = find()?;
    if packages.is_empty() && missing.is_empty() {
        return Ok(());
    }
    let _lock = lock(paths)?;
    // Another xtask may have installed it meanwhile.
    let (packages, missing) = find()?;
    if packages.is_empty() && missing.is_empty() {
        return Ok(());
    }
    println!("set-up: this will be installed");
    if !packages.is_empty() {
        println!("  on this machine, by apt: {}", packages.join(" "));
    }
    missing.iter().for_each(|part| println!("  {}", part.describe(paths)));
    if !packages.is_empty() {
        println!("set-up: apt-get install ({} packages and what they need)", packages.len());
        apt::install(paths, &packages)?;
    }
    for part in &missing {
        // One may come with another.
        if !part.is_ready(paths) {
            println!("set-up: {}", part.describe(paths));
            part.install(paths, &missing)?;
        }
    }
    println!("set-up: done");
    Ok(())
}

/// Waits for any other xtask that installs or builds under `target/`: two at once would collide in
/// dpkg and in the folders. Held until dropped.
pub(crate) fn lock(paths: &Paths) -> Result<Flock<File>> {
    process::create_dir(&paths.target())?;
    let path = paths.target().join("xtask.lock");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .with_context(|| format!("cannot lock {}", path.display()))
}
