//! Python environments with pinned packages.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::paths::Paths;
use crate::process;

/// Debian's Chromium.
pub(crate) const BROWSER: &str = "/usr/bin/chromium";

/// One environment.
pub(crate) struct Venv {
    folder: PathBuf,
    /// For pip: each package with its version and hashes, below a line with those that were asked for. What decides how a VM
    /// behaves is pinned, and a failing test shows a change of the profiler.
    requirements: &'static str,
}

impl Venv {
    /// With virtme-ng.
    pub(crate) fn virtme(paths: &Paths) -> Self {
        let requirements = include_str!("../../requirements/virtme.txt");
        Self { folder: paths.venv(), requirements }
    }

    /// With other implementations of the formats that the profiler writes, and with Playwright.
    pub(crate) fn readers(paths: &Paths) -> Self {
        let requirements = include_str!("../../requirements/readers.txt");
        Self { folder: paths.target().join("readers"), requirements }
    }

    /// With what looks at scripts, workflows and dependencies.
    pub(crate) fn linters(paths: &Paths) -> Self {
        let requirements = include_str!("../../requirements/linters.txt");
        Self { folder: paths.target().join("linters"), requirements }
    }

    /// A program of the environment.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// The environment's interpreter.
    pub(crate) fn python(&self) -> PathBuf {
        self.program("python3")
    }

    pub(super) fn describe(&self) -> String {
        let wanted = self.requirements.lines().next().unwrap_or_default();
        format!("{}: {}, by pip", self.folder.display(), wanted.trim_start_matches("# "))
    }

    // Scripts in the environment hold its absolute path, so a moved checkout needs a new one.
    fn stamp(&self) -> String {
        format!("{}# in {}\n", self.requirements, self.folder.display())
    }

    /// Whether the pinned versions are installed.
    pub(super) fn is_ready(&self) -> bool {
        let found = fs::read_to_string(self.folder.join("stamp"));
        // The interpreter is a link to the host's, which may have gone with an upgrade.
        found.is_ok_and(|found| found == self.stamp()) && self.python().exists()
    }

    /// Creates the environment, replacing an older one.
    pub(super) fn install(&self, paths: &Paths) -> Result<()> {
        let name = self.folder.file_name().unwrap_or_default();
        let log = paths.target().join("logs").join(name).with_extension("log");
        process::remove_dir(&self.folder)?;
        let mut create = Command::new("python3");
        process::run_logged(create.args(["-m", "venv"]).arg(&self.folder), &log)?;
        let requirements = self.folder.join("requirements.txt");
        process::write(&requirements, self.requirements)?;
        let mut pip = Command::new(self.python());
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"]);
        pip.arg("--require-hashes").arg("--requirement").arg(&requirements);
        process::run_logged(&mut pip, &log)?;
        process::write(&self.folder.join("stamp"), self.stamp())
    }
}
