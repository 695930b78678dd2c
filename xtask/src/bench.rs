//! Benchmarks: what the probes add to a call, and how long imports and decisions of the gate take.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::cargo;
use crate::cli::BenchArgs;
use crate::paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};
use crate::speed;
use crate::vm::{self, word};

/// The measured handler is called once in each operation of the load. By this many operations the result repeats within
/// an instruction or two.
const COST: &str = "\"$profiler\" cost --module hids_testbed --handler connect_syscall_entry_handler \
    --builtin connect --operations 20000 --rounds 3 --clock virtual --json";

/// Runs the benchmark that is asked for; returns the exit code of `profiler cost` by default.
pub(crate) fn run(args: &BenchArgs) -> Result<i32> {
    if let Some(megabytes) = args.import {
        setup::ensure(&[setup::PARSERS])?;
        return speed::import(&cargo::build_profiler()?, megabytes).map(|()| 0);
    }
    if let Some(builds) = &args.gate {
        return gate(builds, args.kernel).map(|()| 0);
    }
    let out = paths::target().join("bench");
    process::create_dir(&out)?;
    let json = out.join(format!("cost-{}.json", args.kernel));
    let script = format!("{COST} {}", word(&json));
    let code = vm::run_with_module("bench", args.kernel, &script)?;
    println!("bench: {} under virtual time, {}", args.kernel, json.display());
    Ok(code)
}

/// Measures how long `profiler gate` takes for two builds of a driver, and prints a table.
fn gate(builds: &[PathBuf], series: Series) -> Result<()> {
    let [baseline, candidate] = builds else { bail!("two builds are needed") };
    setup::ensure(&[setup::PARSERS, Part::kernel(&series)])?;
    let profiler = cargo::build_profiler()?;
    let folder = tempfile::tempdir().context("no folder for snapshots")?;
    println!("Linux {}\n", setup::kernel(series)?.release);
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
        let mut gate = process::time(&profiler);
        gate.arg("gate").args([baseline, candidate]).args(more).arg("--quiet");
        gate.arg("--kernel").arg(paths::kernel(series)).env("XDG_CACHE_HOME", folder.path());
        let took = process::timed(&mut gate, &process::DECIDED)?;
        let outcome = took.stdout.lines().next().and_then(|line| line.split(';').next());
        let outcome = outcome.unwrap_or_default().trim_start_matches("gate: ");
        let (seconds, cpu, mib) = (took.seconds, took.cpu_seconds, took.kib / 1024.0);
        println!("| {what} | {seconds:.1} | {cpu:.1} | {mib:.0} | {outcome} |");
    }
    Ok(())
}
