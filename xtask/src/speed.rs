//! How fast the release build imports long traces, against a script of the usual kind. GNU time measures both.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::cargo;
use crate::paths::Paths;
use crate::process;
use crate::setup::{self, Part};
use crate::vm::word;

/// The import must be so many times as fast as the script, by the clock.
const RATIO: f64 = 5.0;
/// Each is run so often, in turns, and its best time counts: what else the machine does makes a
/// program slower and never faster.
const TRIES: usize = 7;
/// The most memory that an import may take, whatever the file's size.
const MEMORY_KIB: f64 = 97_000.0;
/// The handlers of a generated trace.
const HANDLERS: [&str; 8] = [
    "connect_syscall_handler",
    "connect_syscall_entry_handler",
    "bind_handler",
    "bind_entry_handler",
    "execve_entry_handler",
    "execve_handler",
    "security_inode_create_pre_handler",
    "ptrace_pre_handler",
];

/// Builds the profiler, measures its import, and prints the figures.
pub(crate) fn run(paths: &Paths, megabytes: u64) -> Result<()> {
    setup::ensure(paths, &[Part::Parsers])?;
    let profiler = cargo::build_profiler(paths)?;
    println!("import: {}", import(paths, &profiler, megabytes)?);
    Ok(())
}

/// Imports a generated trace of `megabytes` with `profiler` and with the script; gives the figures.
///
/// # Errors
/// If their results differ, or the profiler is too slow or takes too much memory.
pub(crate) fn import(paths: &Paths, profiler: &Path, megabytes: u64) -> Result<String> {
    let folder = paths.target().join("speed");
    process::create_dir(&folder)?;
    let trace = folder.join(format!("trace-{megabytes}.txt"));
    let lines = generate(&trace, megabytes << 20)?;
    let [ours, table, theirs, took] =
        ["import.json", "import.txt", "script.json", "took"].map(|name| folder.join(name));
    let import = format!(
        "{} import trace-cmd --quiet --json {} {} >{}",
        word(profiler),
        word(&ours),
        word(&trace),
        word(&table)
    );
    let script = paths.root().join("xtask/src/speed/script.py");
    let script = format!("python3 {} {} {}", word(&script), word(&trace), word(&theirs));
    let mut best = [[f64::MAX; 2]; 2];
    for _ in 0..TRIES {
        for (best, command) in best.iter_mut().zip([&import, &script]) {
            let [seconds, kib] = timed(command, &took)?;
            *best = [best[0].min(seconds), kib];
        }
    }
    same(&process::read_json(&ours)?, &process::read(&table)?, &process::read_json(&theirs)?)?;
    fs::remove_file(&trace).with_context(|| format!("cannot remove {}", trace.display()))?;

    let [[import, kib], [script, _]] = best;
    let ratio = script / import;
    let figures = format!(
        "{megabytes} MiB, {lines} lines, best of {TRIES}: {import:.2} s, {kib} KiB; the script {script:.2} s: \
         {ratio:.1} times as fast"
    );
    ensure!(ratio >= RATIO, "{figures}, and {RATIO} are wanted");
    ensure!(kib < MEMORY_KIB, "{figures}, and less than {MEMORY_KIB} KiB are wanted");
    Ok(figures)
}

/// Seconds that a shell command takes, and its highest resident memory in KiB.
fn timed(command: &str, took: &Path) -> Result<[f64; 2]> {
    // `time` without `env` is a word of some shells.
    let mut time = Command::new("env");
    time.args(["time", "-f", "%e %M", "-o"]).arg(took).args(["sh", "-c", command]);
    process::stdout(&mut time)?;
    let text = process::read(took)?;
    let (seconds, kib) = text.trim().split_once(' ').context("GNU time wrote nothing")?;
    Ok([seconds.parse()?, kib.parse()?])
}

/// Writes what `trace-cmd report` prints of calls of eight handlers; gives the number of lines.
fn generate(path: &PathBuf, bytes: u64) -> Result<u64> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let (mut written, mut lines) = (0, 0);
    // A linear congruential generator: the same file everywhere.
    let mut state = 20_261_121_u64;
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut line = String::new();
    while written < bytes {
        let (a, b) = (random(), random());
        let handler = HANDLERS[(a % HANDLERS.len() as u64) as usize];
        // Mostly some hundred nanoseconds, and a tail.
        let ns = 80 + b % 900 + if b % 50 == 0 { a % 40_000 } else { 0 };
        let mark = if ns > 10_000 { '+' } else { ' ' };
        line.clear();
        use std::fmt::Write as _;
        writeln!(
            line,
            "          worker-{:<5} [{:03}] {:6}.{:06}: funcgraph_entry:      {mark} {:3}.{:03} us   |  {handler}();",
            4000 + a % 7,
            a % 8,
            14_000 + lines / 100_000,
            lines * 10 % 1_000_000,
            ns / 1000,
            ns % 1000,
        )?;
        out.write_all(line.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
        written += line.len() as u64;
        lines += 1;
    }
    out.flush().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(lines)
}

/// Each function has the same count, average and percentiles in both: ours are in the recording, and below the table.
fn same(ours: &Value, table: &str, theirs: &Value) -> Result<()> {
    let handlers = ours["handlers"].as_array().context("no handlers")?;
    ensure!(handlers.len() == HANDLERS.len(), "{} handlers", handlers.len());
    let (_, percentiles) = table.split_once("\npercentiles ").context("no percentiles")?;
    for handler in handlers {
        let name = handler["name"].as_str().context("no name")?;
        let other = &theirs[name];
        ensure!(
            handler["count"] == other["count"],
            "{name}: {} calls, not {}",
            handler["count"],
            other["count"]
        );
        let mean = handler["sum"].as_f64().zip(handler["count"].as_f64());
        let mean = mean.map(|(sum, count)| sum / count / 1000.0).context("no average")?;
        let row = percentiles.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let row = row.with_context(|| format!("no percentiles of {name}"))?.split_whitespace();
        let figures: Result<Vec<f64>, _> = row.map(str::parse).collect();
        let figures = figures.with_context(|| format!("{name}: no figures"))?;
        ensure!(figures.len() == 3, "{name}: {} percentiles", figures.len());
        for (us, other) in
            [mean].iter().chain(&figures).zip(["average", "p90", "p95", "p99"].map(|of| &other[of]))
        {
            // The table has four decimals.
            let same = other.as_f64().is_some_and(|other| (us - other).abs() < 6e-5);
            ensure!(same, "{name}: {us} us, not {other}");
        }
    }
    Ok(())
}
