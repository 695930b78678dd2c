//! How fast the release build is where it must be: the import of long traces against a script of the
//! usual kind, and the merge of many shards. hyperfine measures the time, GNU time the memory.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::iter::repeat_n;
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
const MEMORY_BYTES: u64 = 100_000_000;
/// Shards of one handler.
const SHARDS: u32 = 1000;
/// To merge them may take so many times the CPU time in which Python's `json` reads them: other processes make both slower.
const MERGE_RATIO: f64 = 2.0;
const READER: &str = "import json, sys; [json.load(open(name)) for name in sys.argv[1:]]";
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

/// What a program took: its best times and its highest resident memory.
#[derive(Clone, Copy)]
struct Cost {
    seconds: f64,
    cpu_seconds: f64,
    peak_bytes: u64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, cpu_seconds, peak_bytes } = self;
        write!(
            f,
            "{seconds:.2} s ({cpu_seconds:.2} s of CPU time), {:.1} MB",
            *peak_bytes as f64 / 1e6
        )
    }
}

/// Builds the profiler, measures its import and its merge, and prints the figures.
pub(crate) fn run(paths: &Paths, megabytes: u64) -> Result<()> {
    setup::ensure(paths, &[Part::Parsers])?;
    let profiler = cargo::build_profiler(paths)?;
    println!("import: {}", import(paths, &profiler, megabytes)?);
    println!("merge: {}", merge(paths, &profiler)?);
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
    let [ours, table, theirs] =
        ["import.json", "import.txt", "script.json"].map(|name| folder.join(name));
    let import = format!(
        "{} import trace-cmd --quiet --json {} {} >{}",
        word(profiler),
        word(&ours),
        word(&trace),
        word(&table)
    );
    let script = paths.root().join("xtask/src/speed/script.py");
    let script = format!("python3 {} {} {}", word(&script), word(&trace), word(&theirs));
    let [import, script] = timed(&folder, [&import, &script])?;
    same(&process::read_json(&ours)?, &process::read(&table)?, &process::read_json(&theirs)?)?;
    fs::remove_file(&trace).with_context(|| format!("cannot remove {}", trace.display()))?;

    let ratio = script.seconds / import.seconds;
    let figures = format!(
        "{megabytes} MiB, {lines} lines, best of {TRIES}: {import}; the script {script}: {ratio:.1} times \
         as fast, {:.1} times by CPU time",
        script.cpu_seconds / import.cpu_seconds,
    );
    ensure!(ratio >= RATIO, "{figures}, and {RATIO} are wanted");
    ensure!(
        import.peak_bytes > 0 && import.peak_bytes < MEMORY_BYTES,
        "{figures}, and less than {MEMORY_BYTES} bytes of memory are wanted"
    );
    Ok(figures)
}

/// Merges 1,000 shards of one handler; gives the figures.
///
/// # Errors
/// If the sum is wrong or takes too long.
pub(crate) fn merge(paths: &Paths, profiler: &Path) -> Result<String> {
    let folder = paths.target().join("speed");
    let shards = folder.join("shards");
    process::empty_dir(&shards)?;
    let template = paths.root().join("profiler/tests/data/shard.json");
    let text = process::read(&template)?;
    let calls = handler_count(&serde_json::from_str(&text)?)?;
    const STARTED: &str = "\"2026-11-21T12:00:00.25Z\"";
    ensure!(text.matches(STARTED).count() == 1, "{} began at another time", template.display());
    for shard in 0..SHARDS {
        let (minute, second) = (shard / 60, shard % 60);
        let started = format!("\"2026-11-21T12:{minute:02}:{second:02}.25Z\"");
        let path = shards.join(format!("{shard}.json"));
        process::write(&path, text.replace(STARTED, &started))?;
    }
    let out = folder.join("sum.json");
    let (program, from, to) = (word(profiler), word(&shards), word(&out));
    let merge = format!("{program} merge --quiet {from}/*.json --output {to}");
    let reader = format!("python3 -c {} {from}/*.json", word(Path::new(READER)));
    let [cost, reader] = timed(&folder, [&merge, &reader])?;
    let merged = handler_count(&process::read_json(&out)?)?;
    ensure!(merged == calls * u64::from(SHARDS), "{merged} calls in the sum of {SHARDS} x {calls}");
    let figures = format!(
        "{SHARDS} shards of {calls} calls, {:.1} MB, best of {TRIES}: {cost}; Python reads them in {reader}",
        (text.len() as f64 * f64::from(SHARDS)) / 1e6,
    );
    let ratio = cost.cpu_seconds / reader.cpu_seconds;
    ensure!(
        ratio <= MERGE_RATIO,
        "{figures}: {ratio:.1} times its CPU time, and {MERGE_RATIO} is the limit"
    );
    process::remove_dir(&shards)?;
    Ok(figures)
}

fn handler_count(profile: &Value) -> Result<u64> {
    profile["handlers"][0]["count"].as_u64().context("no handler with a count")
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

/// Runs shell commands in turns, `TRIES` times each; gives what each took.
fn timed<const N: usize>(folder: &Path, commands: [&str; N]) -> Result<[Cost; N]> {
    let folder = folder.join("times");
    process::empty_dir(&folder)?;
    let times = folder.join("times.json");
    let peak = |turn: usize| folder.join(format!("{turn}.kib"));
    let mut hyperfine = Command::new("hyperfine");
    hyperfine.args(["--runs", "1", "--show-output", "--export-json"]).arg(&times);
    for (turn, command) in repeat_n(commands, TRIES).flatten().enumerate() {
        // `time` without `env` is a word of some shells.
        hyperfine.arg(format!("env time -f %M -o {} {command}", word(&peak(turn))));
    }
    process::stdout(&mut hyperfine)?;
    let times = process::read_json(&times)?;
    let mut costs = [Cost { seconds: f64::MAX, cpu_seconds: f64::MAX, peak_bytes: 0 }; N];
    for turn in 0..TRIES * N {
        let figure = |name: &str| times["results"][turn][name].as_f64().context("no such result");
        let kib = fs::read_to_string(peak(turn)).context("GNU time wrote nothing")?;
        let kib: u64 = kib.trim().parse().context("GNU time wrote no number")?;
        let cost = &mut costs[turn % N];
        cost.seconds = cost.seconds.min(figure("mean")?);
        cost.cpu_seconds = cost.cpu_seconds.min(figure("user")? + figure("system")?);
        cost.peak_bytes = cost.peak_bytes.max(kib << 10);
    }
    Ok(costs)
}
