//! A Python environment with virtme-ng and kirk.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::paths::Paths;
use crate::process;

/// The version of virtme-ng: its options and its init decide how a VM behaves, so it is pinned.
pub(crate) const VERSION: &str = "1.42";

/// The version of kirk, LTP's runner: `profiler` knows the options and the report of this one.
pub(crate) const KIRK: &str = "4.2.0";

fn stamp(paths: &Paths) -> (PathBuf, String) {
    // Scripts in the environment hold its absolute path, so a moved checkout needs a new one.
    let venv = paths.venv();
    let content = format!("virtme-ng {VERSION}, kirk {KIRK} in {}\n", venv.display());
    (venv.join("stamp"), content)
}

/// Whether the pinned versions are installed.
pub(crate) fn is_ready(paths: &Paths) -> bool {
    let (path, content) = stamp(paths);
    let complete = fs::read_to_string(path).is_ok_and(|found| found == content);
    // The interpreter is a link to the host's, which may have gone with an upgrade.
    complete && paths.venv().join("bin/python3").exists()
}

/// Creates the environment, replacing an older one.
pub(crate) fn install(paths: &Paths) -> Result<()> {
    let venv = paths.venv();
    let log = paths.target().join("logs").join("venv.log");
    process::remove_dir(&venv)?;
    process::run_logged(Command::new("python3").args(["-m", "venv"]).arg(&venv), &log)?;
    let mut pip = Command::new(venv.join("bin/python3"));
    pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"]);
    pip.arg(format!("virtme-ng=={VERSION}")).arg(format!("kirk=={KIRK}"));
    process::run_logged(&mut pip, &log)?;
    let (path, content) = stamp(paths);
    process::write(&path, content)
}
