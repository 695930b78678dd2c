//! Installs what the other subcommands need, if it is missing.
//!
//! The plan is printed before anything is touched. Host packages need root and Debian; all the
//! rest lands under `target/`.

mod apt;
mod archive;
mod bpf_linker;
mod kernels;
pub(crate) mod readers;
mod scap;
mod venv;

use std::fs::File;

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};

use crate::paths::Paths;
use crate::process;
use crate::series::Series;

pub(crate) use bpf_linker::{LLVM_MAJOR, LLVM_PREFIX, VERSION as BPF_LINKER_VERSION};
pub(crate) use kernels::{BUILD_FOLDER, Kernel};
pub(crate) use scap::source as scap_source;

/// A part of the set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// QEMU, virtme-ng and what they need on the host.
    Vm,
    /// The Python environment with LTP's runner, which tests on the host use.
    Python,
    /// Compiler and tools for kernel modules.
    ModuleBuild,
    /// One kernel: image, modules and headers.
    Kernel(Series),
    /// Other programs that read what is exported, a browser among them.
    Readers,
    /// Tools that fuzz the parsers and measure their speed.
    Parsers,
    /// Sources of Falco's driver.
    ScapDriver,
    /// Debian's Rust with its library sources, LLVM and bpf-linker.
    BpfBuild,
}

impl Part {
    /// All parts.
    pub(crate) fn all() -> Vec<Self> {
        let mut parts = vec![Self::Vm, Self::ModuleBuild, Self::Readers, Self::Parsers];
        parts.extend(Series::ALL.map(Self::Kernel));
        parts.extend([Self::ScapDriver, Self::BpfBuild]);
        parts
    }

    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Vm => apt::VM,
            Self::Python => apt::PYTHON,
            Self::ModuleBuild => apt::MODULE_BUILD,
            Self::Kernel(_) => apt::KERNEL,
            Self::Readers => apt::READERS,
            Self::Parsers => apt::PARSERS,
            Self::ScapDriver => &[],
            Self::BpfBuild => apt::BPF_BUILD,
        }
    }
}

/// Installs what is missing of `parts`; prints nothing if nothing is.
pub(crate) fn ensure(paths: &Paths, parts: &[Part]) -> Result<()> {
    if Missing::find(paths, parts)?.is_empty() {
        return Ok(());
    }
    let _lock = lock(paths)?;
    let missing = Missing::find(paths, parts)?;
    if missing.is_empty() {
        return Ok(());
    }
    missing.announce(paths);
    missing.install(paths)
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

/// What is missing of the wanted parts.
struct Missing {
    packages: Vec<&'static str>,
    venv: bool,
    readers: bool,
    kernels: Vec<Series>,
    scap: bool,
    bpf_linker: bool,
}

impl Missing {
    fn find(paths: &Paths, parts: &[Part]) -> Result<Self> {
        let wanted = parts.iter().flat_map(|part| part.packages()).copied();
        let kernel = |part: &Part| match part {
            Part::Kernel(series) if Kernel::open(paths, *series).is_none() => Some(*series),
            _ => None,
        };
        Ok(Self {
            packages: apt::missing(wanted)?,
            venv: (parts.contains(&Part::Vm) || parts.contains(&Part::Python))
                && !venv::is_ready(paths),
            readers: parts.contains(&Part::Readers) && !readers::is_ready(paths),
            kernels: parts.iter().filter_map(kernel).collect(),
            scap: parts.contains(&Part::ScapDriver) && scap::source(paths).is_err(),
            bpf_linker: parts.contains(&Part::BpfBuild) && !bpf_linker::is_ready(paths),
        })
    }

    fn is_empty(&self) -> bool {
        self.packages.is_empty()
            && !(self.venv || self.readers || self.scap || self.bpf_linker)
            && self.kernels.is_empty()
    }

    fn announce(&self, paths: &Paths) {
        println!("set-up: this will be installed");
        if !self.packages.is_empty() {
            println!("  on this machine, by apt: {}", self.packages.join(" "));
        }
        let below = |name: &str| paths.target().join(name).display().to_string();
        if self.venv {
            let (vng, kirk) = (venv::VERSION, venv::KIRK);
            println!("  {}: virtme-ng {vng} and kirk {kirk}, by pip", below("venv"));
        }
        if self.readers {
            println!("  {}: {}, by pip", below("readers"), readers::PACKAGES.join(" and "));
        }
        for series in &self.kernels {
            let folder = paths.kernel(*series);
            println!("  {}: Debian's Linux {series}, unpacked, not installed", folder.display());
        }
        if self.scap {
            println!("  {}: sources of Falco's driver, of Debian 12", below("drivers"));
        }
        if self.bpf_linker {
            let version = bpf_linker::VERSION;
            println!("  {}: bpf-linker {version}, by cargo (minutes)", below("tools"));
        }
    }

    fn install(&self, paths: &Paths) -> Result<()> {
        if !self.packages.is_empty() {
            println!(
                "set-up: apt-get install ({} packages and what they need)",
                self.packages.len()
            );
            apt::install(paths, &self.packages)?;
        }
        if self.venv {
            println!("set-up: virtme-ng and kirk");
            venv::install(paths)?;
        }
        if self.readers {
            println!("set-up: other implementations of exported formats");
            readers::install(paths)?;
        }
        if !self.kernels.is_empty() {
            kernels::install(paths, &self.kernels)?;
        }
        if self.scap {
            println!("set-up: sources of Falco's driver");
            scap::install(paths)?;
        }
        if self.bpf_linker {
            println!("set-up: bpf-linker, built from source");
            bpf_linker::install(paths)?;
        }
        println!("set-up: done");
        Ok(())
    }
}
