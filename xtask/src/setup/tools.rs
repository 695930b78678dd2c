//! Programs in `target/`: Python environments with pinned packages, what cargo builds at pinned versions, and programs out of Debian's
//! packages. The last are unpacked, not installed: installing one starts its daemon.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use profiler_vm::Arch;

use super::{Tool, mirror};
use crate::paths;
use crate::process;
use crate::series::Series;

/// Debian's Chromium.
pub(crate) const BROWSER: &str = "/usr/bin/chromium";

/// virtme-ng.
pub(crate) const VIRTME: Venv =
    Venv { folder: "venv", requirements: include_str!("../../requirements/virtme.txt") };

/// Other implementations of the formats that the profiler writes, and Playwright.
pub(crate) const READERS: Venv =
    Venv { folder: "readers", requirements: include_str!("../../requirements/readers.txt") };

/// Linters of scripts, workflows and dependencies.
pub(crate) const LINTERS: Venv =
    Venv { folder: "linters", requirements: include_str!("../../requirements/linters.txt") };

/// One environment.
pub(crate) struct Venv {
    /// Below `target/`.
    folder: &'static str,
    /// For pip: each package with its version and hashes, below a line with those that were asked for. What decides how a VM
    /// behaves is pinned, and a failing test shows a change of the profiler.
    requirements: &'static str,
}

impl Venv {
    fn folder(&self) -> PathBuf {
        paths::target().join(self.folder)
    }

    /// A program of the environment.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder().join("bin").join(name)
    }

    // Scripts in the environment hold its absolute path, so a moved checkout needs a new one.
    fn stamp(&self) -> String {
        format!("{}# in {}\n", self.requirements, self.folder().display())
    }
}

impl Tool for Venv {
    fn is_ready(&self) -> bool {
        let found = fs::read_to_string(self.folder().join("stamp"));
        // The interpreter is a link to the host's, which may have gone with an upgrade.
        found.is_ok_and(|found| found == self.stamp()) && self.program("python3").exists()
    }

    /// Replaces an older one.
    fn install(&self) -> Result<()> {
        let folder = self.folder();
        process::remove_dir(&folder)?;
        process::stdout(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let requirements = folder.join("requirements.txt");
        process::write(&requirements, self.requirements)?;
        let mut pip = Command::new(self.program("python3"));
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"]);
        pip.arg("--require-hashes").arg("--requirement").arg(&requirements);
        process::stdout(&mut pip)?;
        Ok(process::write(&folder.join("stamp"), self.stamp())?)
    }
}

/// Where Debian puts the LLVM that bpf-linker is built with. A compiler with a newer one writes bitcode that it cannot
/// read.
pub(crate) const LLVM_PREFIX: &str = "/usr/lib/llvm-22";

/// Links BPF objects. The version reads the bitcode of the compilers in use; the feature is that of [`LLVM_PREFIX`].
pub(crate) const BPF_LINKER: CargoTool =
    CargoTool { name: "bpf-linker", version: "0.13.0", features: "llvm-22" };

/// Builds the book.
pub(crate) const MDBOOK: CargoTool =
    CargoTool { name: "mdbook", version: "0.5.4", features: "search" };

/// Makes the Debian package; xz compresses it.
pub(crate) const CARGO_DEB: CargoTool =
    CargoTool { name: "cargo-deb", version: "3.8.0", features: "" };

/// One program.
pub(crate) struct CargoTool {
    name: &'static str,
    pub(crate) version: &'static str,
    /// In place of the default features.
    features: &'static str,
}

impl CargoTool {
    /// The program's file.
    pub(crate) fn program(&self) -> PathBuf {
        paths::tools().join("bin").join(self.name)
    }
}

impl Tool for CargoTool {
    fn is_ready(&self) -> bool {
        process::version(self.program()).is_ok_and(|text| text.contains(self.version))
    }

    fn install(&self) -> Result<()> {
        let build = paths::target().join(format!("{}-build", self.name));
        let mut cargo = Command::new("cargo");
        // Unoptimised takes half the time to build; what these do takes a moment either way.
        cargo.args(["install", self.name, "--locked", "--force", "--debug"]);
        cargo.args(["--version", self.version, "--no-default-features"]);
        cargo.args(["--features", self.features, "--root"]).arg(paths::tools());
        // Its own folder: the project's flags and lock do not apply.
        cargo.env("CARGO_TARGET_DIR", &build).current_dir("/").env("LLVM_PREFIX", LLVM_PREFIX);
        process::stdout(&mut cargo)?;
        Ok(process::remove_dir(&build)?)
    }
}

/// auditctl.
pub(crate) const AUDIT: UnpackedTool =
    UnpackedTool { package: "auditd", name: "audit", folder: "sbin" };

/// Prometheus and promtool. Of Debian 12: its version is the first of a stable release that has native histograms.
pub(crate) const PROMETHEUS: UnpackedTool =
    UnpackedTool { package: "prometheus", name: "prometheus", folder: "usr/bin" };

/// A package, and what is needed of it.
pub(crate) struct UnpackedTool {
    package: &'static str,
    /// Its folder in `target/tools`, and in that the one with its programs.
    name: &'static str,
    folder: &'static str,
}

impl UnpackedTool {
    /// The folder with its programs.
    pub(crate) fn programs(&self) -> PathBuf {
        paths::tools().join(self.name).join(self.folder)
    }
}

impl Tool for UnpackedTool {
    fn is_ready(&self) -> bool {
        self.programs().exists()
    }

    fn install(&self) -> Result<()> {
        // All of these are of Debian 12.
        let apt = mirror::apt(&paths::target().join("apt"), &[Series::V6_1], Arch::HERE)?;
        mirror::unpack(&apt, self.package, &paths::tools().join(self.name))
    }
}
