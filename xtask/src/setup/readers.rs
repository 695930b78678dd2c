//! Other implementations of the formats that the profiler writes, and what steers a browser, in a
//! Python environment of their own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::paths::Paths;
use crate::process;

/// Pinned, so that a test that fails means a change of ours.
pub(crate) const PACKAGES: [&str; 3] =
    ["hdrhistogram==0.10.8", "prometheus_client==0.26.0", "playwright==1.64.1"];

fn stamp(paths: &Paths) -> (PathBuf, String) {
    let folder = paths.readers();
    let content = format!("{} in {}\n", PACKAGES.join(" "), folder.display());
    (folder.join("stamp"), content)
}

/// The environment's interpreter.
pub(crate) fn python(paths: &Paths) -> PathBuf {
    paths.readers().join("bin/python3")
}

/// True when the pinned versions are there.
pub(crate) fn is_ready(paths: &Paths) -> bool {
    let (path, content) = stamp(paths);
    fs::read_to_string(path).is_ok_and(|found| found == content) && python(paths).exists()
}

/// Makes the environment anew.
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
