//! A Python environment with other implementations of the formats that the profiler writes, and with Playwright.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::paths::Paths;
use crate::process;

/// Pinned, so that a failing test shows a change of the profiler.
pub(crate) const PACKAGES: [&str; 3] =
    ["hdrhistogram==0.10.8", "prometheus_client==0.26.0", "playwright==1.64.1"];

/// Debian's Chromium.
pub(crate) const BROWSER: &str = "/usr/bin/chromium";

fn stamp(paths: &Paths) -> (PathBuf, String) {
    let folder = paths.readers();
    let content = format!("{} in {}\n", PACKAGES.join(" "), folder.display());
    (folder.join("stamp"), content)
}

/// The environment's interpreter.
pub(crate) fn python(paths: &Paths) -> PathBuf {
    paths.readers().join("bin/python3")
}

/// Whether the pinned versions are installed.
pub(crate) fn is_ready(paths: &Paths) -> bool {
    let (path, content) = stamp(paths);
    fs::read_to_string(path).is_ok_and(|found| found == content) && python(paths).exists()
}

/// Creates the environment, replacing an older one.
pub(crate) fn install(paths: &Paths) -> Result<()> {
    let folder = paths.readers();
    let log = paths.target().join("logs").join("readers.log");
    process::remove_dir(&folder)?;
    process::run_logged(Command::new("python3").args(["-m", "venv"]).arg(&folder), &log)?;
    let mut pip = Command::new(python(paths));
    // Binary packages: building one would need a compiler with Python's headers.
    pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"]);
    pip.args(["--only-binary", ":all:"]).args(PACKAGES);
    process::run_logged(&mut pip, &log)?;
    let (path, content) = stamp(paths);
    process::write(&path, content)
}
