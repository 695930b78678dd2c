//! How long `profiler gate` takes for two builds of a driver, as a table: CPU, QEMU and kernel are of this machine.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::cargo;
use crate::gate_power::machine;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};
use crate::speed::Timed;

/// Measures each way to ask, one after the other, and prints the table.
pub(crate) fn run(paths: &Paths, builds: &[PathBuf], series: Series) -> Result<()> {
    let [baseline, candidate] = builds else { bail!("two builds are needed") };
    setup::ensure(paths, &[setup::PARSERS, Part::kernel(&series)])?;
    let profiler = cargo::build_profiler(paths)?;
    let folder = tempfile::tempdir().context("no folder for snapshots")?;
    println!("Linux {} on {}\n", setup::kernel(paths, series)?.release, machine());
    println!("| two builds, and | seconds | of CPU time | largest process, MiB | outcome |");
    println!("|---|---:|---:|---:|---|");
    for (what, more, candidate) in [
        ("all loads, no snapshot yet", &[][..], candidate),
        ("all loads", &[], candidate),
        ("`--changed-only`", &["--changed-only"], candidate),
        // Those of one system call in Elkeid's driver and in the test module.
        ("handlers `connect_*`", &["--handler", "connect_*"], candidate),
        ("equal code", &[], baseline),
    ] {
        let timed = Timed::new(folder.path().join("took"));
        let mut gate = timed.command();
        gate.arg(&profiler).arg("gate").args([baseline, candidate]).args(more).arg("--quiet");
        gate.arg("--kernel").arg(paths.kernel(series)).env("XDG_CACHE_HOME", folder.path());
        let said = process::decision(&mut gate)?;
        let [seconds, cpu_seconds, kib] = timed.took()?;
        let outcome = said.lines().next().and_then(|line| line.split(';').next());
        let outcome = outcome.unwrap_or_default().trim_start_matches("gate: ");
        println!("| {what} | {seconds:.1} | {cpu_seconds:.1} | {:.0} | {outcome} |", kib / 1024.0);
    }
    Ok(())
}
