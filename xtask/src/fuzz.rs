//! Fuzzing of every parser: `fuzz/` holds the targets and a small corpus. Stable Rust has the compiler flags of
//! libFuzzer's instrumentation, so neither nightly nor cargo-fuzz is needed; `cargo fuzz` works in that folder, too.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::paths::Paths;
use crate::process;
use crate::setup::{self, Part};

/// The targets, by the names of their corpora.
pub(crate) const TARGETS: [&str; 4] = ["trace_cmd", "profile_json", "load_profile", "lab_counts"];

/// Coverage counters and comparisons for libFuzzer, as cargo-fuzz has them.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// With an explicit target, build scripts and macros are not instrumented.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Longest input; the parsers' limits are lower.
const MAX_BYTES: u32 = 64 << 10;

/// Builds the targets; gives the folder with their programs.
pub(crate) fn build(paths: &Paths) -> Result<PathBuf> {
    let target = paths.target().join("fuzz");
    let mut cargo = Command::new("cargo");
    // Not --locked: the file there follows the dependencies of the profiler, which change without it.
    cargo.args(["build", "--release", "--quiet", "--target", TRIPLE]);
    cargo.arg("--target-dir").arg(&target);
    cargo.env("RUSTFLAGS", FLAGS).current_dir(paths.fuzz());
    println!("build: fuzz targets");
    process::run(&mut cargo)?;
    Ok(target.join(TRIPLE).join("release"))
}

/// Builds the targets, and runs `targets`, or all if there are none, one after another.
pub(crate) fn run_each(paths: &Paths, seconds: u32, targets: &[String]) -> Result<()> {
    setup::ensure(paths, &[Part::Parsers])?;
    let programs = build(paths)?;
    let is_wanted =
        |target: &&&str| targets.is_empty() || targets.iter().any(|name| name == **target);
    for target in TARGETS.iter().filter(is_wanted) {
        println!("fuzz: {target}: {}", run(paths, &programs, target, seconds)?);
    }
    Ok(())
}

/// Runs one target for a number of seconds; new inputs are kept below `target/`. A finding is an
/// error, with the input that shows it.
pub(crate) fn run(paths: &Paths, programs: &Path, target: &str, seconds: u32) -> Result<String> {
    let out = paths.target().join("fuzz").join("run").join(target);
    let corpus = out.join("corpus");
    let artifacts = out.join("findings");
    process::create_dir(&corpus)?;
    process::empty_dir(&artifacts)?;
    let mut fuzz = Command::new(programs.join(target));
    fuzz.arg(&corpus).arg(paths.fuzz().join("corpus").join(target));
    fuzz.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={MAX_BYTES}"));
    fuzz.args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"]);
    fuzz.arg(format!("-artifact_prefix={}/", artifacts.display()));
    let log = out.join("log");
    process::run_logged(&mut fuzz, &log)?;
    let said = process::read(&log)?;
    let executed =
        said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let executed: u64 = executed
        .and_then(|count| count.trim().parse().ok())
        .with_context(|| format!("{target} does not say how many inputs it tried"))?;
    if executed == 0 {
        bail!("{target} tried no input");
    }
    Ok(format!("{executed} inputs in {seconds} s"))
}
