//! The main job from nothing: set-up, build, boot, a driver, its handlers under load, table, JSON.
//!
//! Under virtual time, so that figures are nearly the same on every machine.

mod scap;
mod testbed;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::cli::Driver;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::vm::{self, VmOutcome, VmSpec};

/// Runs the demo; gives the exit code of `profiler run`.
pub(crate) fn run(paths: &Paths, driver: Driver, series: Series) -> Result<i32> {
    match driver {
        Driver::Testbed => testbed::run(paths, series),
        Driver::Scap => scap::run(paths, series),
    }
}

/// An empty folder for a demo's output.
fn output(paths: &Paths, name: &str) -> Result<PathBuf> {
    let out = paths.target().join(name);
    process::empty_dir(&out)?;
    Ok(out)
}

/// Boots under virtual time and runs the script.
fn boot(paths: &Paths, name: &str, series: Series, script: &str) -> Result<VmOutcome> {
    vm::run(paths, &VmSpec::virtual_time(name, series, script))
}

/// Prints the path of the result, or the exit code and the log.
fn conclude(outcome: &VmOutcome, result: &Path) -> Result<()> {
    if outcome.code == 0 {
        let size = fs::metadata(result)
            .with_context(|| format!("profiler left no {}", result.display()))?
            .len();
        if size == 0 {
            bail!("{} is empty", result.display());
        }
        println!("demo: {} ({size} bytes)", result.display());
    } else {
        eprintln!("error: demo: exit code {}; log: {}", outcome.code, outcome.log.display());
    }
    Ok(())
}
