//! How fast the release build imports long traces, against a script of the usual kind. GNU time measures both.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::demo::TEN;
use crate::paths;
use crate::process;

/// The import must be so many times as fast as the script, by the clock.
const RATIO: f64 = 3.0;
/// Each is run so often, in turns, and its best time counts: what else the machine does makes a
/// program slower and never faster.
const TRIES: usize = 5;
/// The most memory that an import may take, whatever the file's size.
const MEMORY_KIB: f64 = 97_000.0;

/// Imports a generated trace of `megabytes` with `profiler` and with the script; prints the figures.
///
/// # Errors
/// If their results differ, or the profiler is less than [`RATIO`] times as fast or takes too much memory.
pub(crate) fn import(profiler: &Path, megabytes: u64) -> Result<()> {
    let folder = paths::target().join("speed");
    process::create_dir(&folder)?;
    let [trace, ours, theirs] =
        ["trace.txt", "import.json", "script.json"].map(|name| folder.join(name));
    let lines = generate(&trace, megabytes << 20)
        .with_context(|| format!("cannot write {}", trace.display()))?;
    let mut importing = Command::new(profiler);
    importing.args(["import", "trace-cmd", "--json"]).args([&ours, &trace]);
    let mut scripted = Command::new("python3");
    scripted.arg(paths::root().join("xtask/src/speed/script.py")).args([&trace, &theirs]);
    let (mut import, mut kib, mut script) = (f64::MAX, 0_f64, f64::MAX);
    for _ in 0..TRIES {
        let [seconds, most] = measure(&importing)?;
        (import, kib) = (import.min(seconds), kib.max(most));
        script = script.min(measure(&scripted)?[0]);
    }
    same(&process::read_json(&ours)?, &process::read_json(&theirs)?)?;
    fs::remove_file(&trace).with_context(|| format!("cannot remove {}", trace.display()))?;

    let ratio = script / import;
    let figures = format!(
        "{megabytes} MiB, {lines} lines, best of {TRIES}: {import:.2} s, {kib} KiB; the script {script:.2} s: \
         {ratio:.1} times as fast"
    );
    ensure!(ratio >= RATIO, "{figures}, and {RATIO} are wanted");
    ensure!(kib < MEMORY_KIB, "{figures}, and less than {MEMORY_KIB} KiB are wanted");
    println!("import: {figures}");
    Ok(())
}

/// Seconds, and KiB of the largest process, that a command takes by GNU time, which writes them to its error output.
fn measure(command: &Command) -> Result<[f64; 2]> {
    let mut time = Command::new("time");
    time.args(["-f", "%e %M"]).arg(command.get_program()).args(command.get_args());
    let (_, said) = process::output_if(&mut time, &[0])?;
    let figures = said.lines().last().and_then(|line| line.split_once(' '));
    let (seconds, kib) = figures.context("GNU time wrote no figures")?;
    Ok([seconds.parse()?, kib.parse()?])
}

/// Writes what `trace-cmd report` prints of calls of ten handlers; returns the number of lines.
fn generate(path: &Path, bytes: u64) -> Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let (mut written, mut lines) = (0, 0_u64);
    while written < bytes {
        // Numbers that look random and are the same everywhere.
        let a = lines.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let b = lines.wrapping_mul(0xd1b5_4a32_d192_ed03) >> 33;
        let handler = TEN[(a % TEN.len() as u64) as usize];
        // Mostly some hundred nanoseconds, and a tail.
        let ns = 80 + b % 900 + if b % 50 == 0 { a % 40_000 } else { 0 };
        let mark = if ns > 10_000 { '+' } else { ' ' };
        let line = format!(
            "          worker-{:<5} [{:03}] {:6}.{:06}: funcgraph_entry:      {mark} {:3}.{:03} us   |  {handler}();\n",
            4000 + a % 7,
            a % 8,
            14_000 + lines / 100_000,
            lines * 10 % 1_000_000,
            ns / 1000,
            ns % 1000,
        );
        out.write_all(line.as_bytes())?;
        written += line.len() as u64;
        lines += 1;
    }
    out.flush()?;
    Ok(lines)
}

/// Each function has the same count and average in both.
fn same(ours: &Value, theirs: &Value) -> Result<()> {
    let handlers = ours["handlers"].as_array().context("no handlers")?;
    ensure!(handlers.len() == TEN.len(), "{} handlers", handlers.len());
    for handler in handlers {
        let name = handler["name"].as_str().context("no name")?;
        let [count, sum, theirs_count, average] =
            [&handler["count"], &handler["sum"], &theirs[name]["count"], &theirs[name]["average"]]
                .map(|figure| figure.as_f64().unwrap_or(f64::NAN));
        let is_same = count == theirs_count && (sum / count / 1000.0 - average).abs() < 6e-5;
        ensure!(is_same, "{name}: {handler}, and by the script {}", theirs[name]);
    }
    Ok(())
}
