//! Python environments with pinned packages.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::paths::Paths;
use crate::process;

/// The version of virtme-ng: its options and its init decide how a VM behaves, so it is pinned.
const VIRTME: &str = "1.42";

/// The version of kirk, LTP's runner: `profiler` knows the options and the report of this one.
const KIRK: &str = "4.2.0";

/// Pinned, so that a failing test shows a change of the profiler.
const READERS: [&str; 4] =
    ["hdrhistogram==0.10.8", "prometheus_client==0.26.0", "playwright==1.64.1", "kcidb_io==141"];

/// Debian's Chromium.
pub(crate) const BROWSER: &str = "/usr/bin/chromium";

/// One environment.
pub(crate) struct Venv {
    folder: PathBuf,
    /// As it is announced, and noted in the environment.
    content: String,
    /// For pip.
    packages: Vec<String>,
}

impl Venv {
    /// With virtme-ng and kirk.
    pub(crate) fn virtme(paths: &Paths) -> Self {
        Self {
            folder: paths.venv(),
            content: format!("virtme-ng {VIRTME}, kirk {KIRK}"),
            packages: vec![format!("virtme-ng=={VIRTME}"), format!("kirk=={KIRK}")],
        }
    }

    /// With other implementations of the formats that the profiler writes, and with Playwright.
    pub(crate) fn readers(paths: &Paths) -> Self {
        // Binary packages: building one would need a compiler with Python's headers.
        let packages = ["--only-binary", ":all:"].into_iter().chain(READERS).map(str::to_owned);
        Self { folder: paths.readers(), content: READERS.join(" "), packages: packages.collect() }
    }

    /// The environment's interpreter.
    pub(crate) fn python(&self) -> PathBuf {
        self.folder.join("bin/python3")
    }

    pub(super) fn describe(&self) -> String {
        format!("{}: {}, by pip", self.folder.display(), self.content)
    }

    // Scripts in the environment hold its absolute path, so a moved checkout needs a new one.
    fn stamp(&self) -> String {
        format!("{} in {}\n", self.content, self.folder.display())
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
        let mut pip = Command::new(self.python());
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"]);
        process::run_logged(pip.args(&self.packages), &log)?;
        process::write(&self.folder.join("stamp"), self.stamp())
    }
}
