//! Python environments with pinned packages.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::Tool;
use crate::paths;
use crate::process;

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
        let log = paths::target().join("logs").join(self.folder).with_extension("log");
        process::remove_dir(&folder)?;
        process::run_logged(Command::new("python3").args(["-m", "venv"]).arg(&folder), &log)?;
        let requirements = folder.join("requirements.txt");
        process::write(&requirements, self.requirements)?;
        let mut pip = Command::new(self.program("python3"));
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"]);
        pip.arg("--require-hashes").arg("--requirement").arg(&requirements);
        process::run_logged(&mut pip, &log)?;
        Ok(process::write(&folder.join("stamp"), self.stamp())?)
    }
}
