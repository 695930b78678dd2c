//! Installs what the other subcommands need, if it is missing.
//!
//! The plan is printed before anything is touched. Host packages need root and Debian; all the
//! rest lands under `target/`.

mod apt;
pub(crate) mod arm64;
mod cargo_tool;
mod kernels;
mod mirror;
mod unpacked;
pub(crate) mod venv;

use std::fs::File;

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};

use crate::dist;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::stop;

use cargo_tool::CargoTool;
pub(crate) use cargo_tool::{BPF_LINKER, CARGO_DEB, LLVM_MAJOR, LLVM_PREFIX, MDBOOK};
pub(crate) use kernels::{BUILD_FOLDER, has_own_tools, kernel};
use unpacked::UnpackedTool;
pub(crate) use unpacked::{AUDIT, PROMETHEUS};
use venv::Venv;

/// A part of the set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// QEMU, virtme-ng and what they need on the host.
    Vm,
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

/// What a part has beside packages of this machine.
enum Tool {
    Nothing,
    Venv(fn(&Paths) -> Venv),
    Cargo(&'static CargoTool),
    Unpacked(&'static UnpackedTool),
    Kernel(Series),
    Arm64,
    CleanRoot,
}

impl Part {
    /// All parts but those that only `book` and `dist` need.
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
        parts.extend([Self::BpfBuild, Self::Arm64]);
        parts
    }

    /// Its packages, and what else it has.
    fn needs(self) -> (&'static str, Tool) {
        match self {
            Self::Vm => (apt::VM, Tool::Venv(Venv::virtme)),
            Self::ModuleBuild => (apt::MODULE_BUILD, Tool::Nothing),
            Self::Agents => (apt::AGENTS, Tool::Unpacked(&AUDIT)),
            Self::Kernel(series) => (apt::KERNEL, Tool::Kernel(series)),
            Self::Readers => (apt::READERS, Tool::Venv(Venv::readers)),
            Self::Linters => (apt::PYTHON, Tool::Venv(Venv::linters)),
            Self::Prometheus => ("", Tool::Unpacked(&PROMETHEUS)),
            Self::Parsers => (apt::PARSERS, Tool::Nothing),
            Self::BpfBuild => (apt::BPF_BUILD, Tool::Cargo(&BPF_LINKER)),
            Self::Arm64 => (apt::ARM64, Tool::Arm64),
            Self::Book => ("", Tool::Cargo(&MDBOOK)),
            Self::Dist => (apt::DIST, Tool::Cargo(&CARGO_DEB)),
            Self::CleanRoot => (apt::CLEAN_ROOT, Tool::CleanRoot),
        }
    }
}

impl Tool {
    fn is_ready(&self, paths: &Paths) -> bool {
        match self {
            Self::Nothing => true,
            Self::Venv(venv) => venv(paths).is_ready(),
            Self::Cargo(tool) => tool.is_ready(paths),
            Self::Unpacked(tool) => tool.is_ready(paths),
            Self::Kernel(series) => kernel(paths, *series).is_ok(),
            Self::Arm64 => arm64::is_ready(paths),
            Self::CleanRoot => dist::clean_root(paths).exists(),
        }
    }

    /// Where it is installed, and what it is.
    fn describe(&self, paths: &Paths) -> String {
        match self {
            Self::Nothing => "packages alone".to_owned(),
            Self::Venv(venv) => venv(paths).describe(),
            Self::Cargo(tool) => tool.describe(paths),
            Self::Unpacked(tool) => tool.describe(paths),
            Self::Kernel(series) => {
                let folder = paths.kernel(*series);
                format!("{}: Debian's Linux {series}, unpacked, not installed", folder.display())
            }
            Self::Arm64 => {
                format!("{}: kernels and a Rust library of arm64", paths.arm64().display())
            }
            Self::CleanRoot => {
                format!("{}: a clean Debian root", dist::clean_root(paths).display())
            }
        }
    }

    fn install(&self, paths: &Paths) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Venv(venv) => venv(paths).install(paths),
            Self::Cargo(tool) => tool.install(paths),
            Self::Unpacked(tool) => tool.install(paths),
            Self::Kernel(series) => kernels::install(paths, *series),
            Self::Arm64 => arm64::install(paths),
            Self::CleanRoot => dist::make_clean_root(paths),
        }
    }
}

/// Installs what is missing of `parts`; prints nothing if nothing is. An error after a signal: each VM asks for its parts.
pub(crate) fn ensure(paths: &Paths, parts: &[Part]) -> Result<()> {
    stop::check()?;
    let find = || -> Result<_> {
        let (packages, tools): (Vec<_>, Vec<_>) = parts.iter().map(|part| part.needs()).unzip();
        let packages = packages.into_iter().flat_map(str::split_whitespace);
        let missing = tools.into_iter().filter(|tool| !tool.is_ready(paths));
        Ok((apt::missing(packages)?, missing.collect::<Vec<Tool>>()))
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
    missing.iter().for_each(|tool| println!("  {}", tool.describe(paths)));
    if !packages.is_empty() {
        println!("set-up: apt-get install ({} packages and what they need)", packages.len());
        apt::install(paths, &packages)?;
    }
    for tool in &missing {
        // Two parts may have the same.
        if !tool.is_ready(paths) {
            println!("set-up: {}", tool.describe(paths));
            tool.install(paths)?;
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
