//! Programs that cargo builds into `target/tools`, at pinned versions.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::Tool;
use crate::paths;
use crate::process;

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
        let entry = format!("\"{} {} ", self.name, self.version);
        let manifest = paths::tools().join(".crates.toml");
        self.program().exists()
            && fs::read_to_string(manifest).is_ok_and(|text| text.contains(&entry))
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
        let log = paths::target().join("logs").join(format!("{}.log", self.name));
        process::run_logged(&mut cargo, &log)?;
        Ok(process::remove_dir(&build)?)
    }
}
