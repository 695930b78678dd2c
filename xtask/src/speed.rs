//! How fast the release build is where it must be: the import of long traces against a script of the
//! usual kind, and the merge of many shards.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::Value;

use crate::paths::Paths;
use crate::process;

/// The import must be so many times as fast as the script, by the clock.
const RATIO: f64 = 20.0;
/// Each is run so often, in turns, and its best time counts: what else the machine does makes a
/// program slower and never faster.
const TRIES: u32 = 3;
/// The most memory that an import may take, whatever the file's size.
const MEMORY_BYTES: u64 = 100_000_000;
/// Shards of one handler, and the time that merging them may take by the clock.
const SHARDS: u32 = 1000;
const MERGE_TIME: Duration = Duration::from_secs(1);
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

/// What a program took.
struct Cost {
    time: Duration,
    cpu: Duration,
    peak_bytes: u64,
}

impl Cost {
    fn best(self, other: Self) -> Self {
        Self {
            time: self.time.min(other.time),
            cpu: self.cpu.min(other.cpu),
            peak_bytes: self.peak_bytes.max(other.peak_bytes),
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (time, cpu) = (self.time.as_secs_f64(), self.cpu.as_secs_f64());
        write!(f, "{time:.2} s ({cpu:.2} s of CPU time), {:.1} MB", self.peak_bytes as f64 / 1e6)
    }
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
    let (ours, theirs) = (folder.join("import.json"), folder.join("script.json"));

    let mut best: Option<(Cost, Cost)> = None;
    for _ in 0..TRIES {
        let mut import = Command::new(profiler);
        import.args(["import", "trace-cmd", "--quiet", "--percentile", "seed", "--json"]);
        let import = timed(import.arg(&ours).arg(&trace))?;
        let mut script = Command::new("python3");
        script.arg(paths.root().join("xtask/src/speed/script.py")).arg(&trace).arg(&theirs);
        let script = timed(&mut script)?;
        best = Some(match best {
            None => (import, script),
            Some((a, b)) => (a.best(import), b.best(script)),
        });
    }
    let (import, script) = best.context("nothing was measured")?;
    same(&read(&ours)?, &read(&theirs)?)?;
    fs::remove_file(&trace).with_context(|| format!("cannot remove {}", trace.display()))?;

    let ratio = script.time.as_secs_f64() / import.time.as_secs_f64();
    let figures = format!(
        "{megabytes} MiB, {lines} lines, best of {TRIES}: {import}; the script {script}: {ratio:.1} times \
         as fast, {:.1} times by CPU time",
        script.cpu.as_secs_f64() / import.cpu.as_secs_f64(),
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
    let folder = paths.target().join("speed").join("shards");
    process::create_dir(&folder)?;
    let template = paths.root().join("profiler/tests/data/shard.json");
    let text = fs::read_to_string(&template)
        .with_context(|| format!("cannot read {}", template.display()))?;
    let calls = handler_count(&serde_json::from_str(&text)?)?;
    const STARTED: &str = "\"2026-11-21T12:00:00.25Z\"";
    ensure!(text.matches(STARTED).count() == 1, "{} began at another time", template.display());
    let mut merge = Command::new(profiler);
    merge.args(["merge", "--quiet"]);
    for shard in 0..SHARDS {
        let path = folder.join(format!("{shard}.json"));
        let (minute, second) = (shard / 60, shard % 60);
        let started = format!("\"2026-11-21T12:{minute:02}:{second:02}.25Z\"");
        process::write(&path, text.replace(STARTED, &started))?;
        merge.arg(path);
    }
    let out = paths.target().join("speed").join("sum.json");
    merge.arg("--output").arg(&out);
    let mut cost = timed(&mut merge)?;
    for _ in 1..TRIES {
        cost = cost.best(timed(&mut merge)?);
    }
    let merged = handler_count(&read(&out)?)?;
    ensure!(merged == calls * u64::from(SHARDS), "{merged} calls in the sum of {SHARDS} x {calls}");
    let figures = format!(
        "{SHARDS} shards of {calls} calls, {:.1} MB, best of {TRIES}: {cost}",
        (text.len() as f64 * f64::from(SHARDS)) / 1e6,
    );
    ensure!(cost.time < MERGE_TIME, "{figures}, and {MERGE_TIME:?} is the limit");
    process::remove_dir(&folder)?;
    Ok(figures)
}

fn handler_count(profile: &Value) -> Result<u64> {
    profile["handlers"][0]["count"].as_u64().context("no handler with a count")
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no JSON", path.display()))
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

/// Each function has the same count, average and percentiles in both.
fn same(ours: &Value, theirs: &Value) -> Result<()> {
    let functions = ours["functions"].as_array().context("no functions")?;
    ensure!(functions.len() == HANDLERS.len(), "{} functions", functions.len());
    for function in functions {
        let name = function["name"].as_str().context("no name")?;
        let other = &theirs[name];
        ensure!(
            function["count"] == other["count"],
            "{name}: {} calls, not {}",
            function["count"],
            other["count"]
        );
        let pairs = [
            (&function["mean_ns"], &other["average"]),
            (&function["percentiles_ns"]["p90"], &other["p90"]),
            (&function["percentiles_ns"]["p95"], &other["p95"]),
            (&function["percentiles_ns"]["p99"], &other["p99"]),
        ];
        for (ns, us) in pairs {
            let (Some(ns), Some(us)) = (ns.as_f64(), us.as_f64()) else {
                bail!("{name}: a figure is missing");
            };
            // The script adds floating point up; ours is exact.
            ensure!((ns - us * 1000.0).abs() < 1e-3, "{name}: {ns} ns, not {us} us");
        }
    }
    Ok(())
}

/// Runs the command and measures it; nothing else must be started meanwhile.
fn timed(command: &mut Command) -> Result<Cost> {
    let text = process::text(command);
    let text = text.get(..200).unwrap_or(&text);
    let children = || -> Result<Duration> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("cannot ask for the CPU time")?;
        let time = |value: nix::sys::time::TimeVal| {
            Duration::new(value.tv_sec() as u64, value.tv_usec() as u32 * 1000)
        };
        Ok(time(usage.user_time()) + time(usage.system_time()))
    };
    let before = children()?;
    let began = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("cannot run `{text}`"))?;
    let mut peak_bytes = 0;
    let status = loop {
        // The kernel's own high-water mark: what is read last is the most there has been.
        peak_bytes = peak(child.id()).unwrap_or(peak_bytes);
        if let Some(status) =
            child.try_wait().with_context(|| format!("cannot wait for `{text}`"))?
        {
            break status;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    ensure!(status.success(), "`{text}` failed: {status}");
    Ok(Cost { time: began.elapsed(), cpu: children()? - before, peak_bytes })
}

/// Most memory that a process has had resident.
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
