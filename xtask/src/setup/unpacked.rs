//! Programs out of Debian's packages. They are unpacked, not installed: installing one starts its daemon.

use std::path::PathBuf;

use anyhow::Result;
use profiler_vm::Arch;

use super::{Tool, mirror};
use crate::paths;
use crate::series::Series;

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
