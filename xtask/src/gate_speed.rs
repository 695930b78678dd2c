//! How long `profiler gate` takes for two builds of a driver, as a table: CPU, QEMU and kernel are of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use crate::cargo;
use crate::gate_power::machine;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};

/// Handlers of the row about a few: those of one system call in Elkeid's driver and in the test module.
const FEW: &str = "connect_*";

/// Between two looks at the memory of the gate's processes.
const INTERVAL: Duration = Duration::from_millis(200);

/// Measures each way to ask, one after the other, and prints the table.
pub(crate) fn run(paths: &Paths, builds: &[PathBuf], series: Series) -> Result<()> {
    let [baseline, candidate] = builds else { bail!("two builds are needed") };
    setup::ensure(paths, &[Part::Kernel(series)])?;
    let profiler = cargo::build_profiler(paths)?;
    let cache = tempfile::tempdir().context("no folder for snapshots")?;
    println!("Linux {} on {}\n", setup::kernel(paths, series)?.release, machine());
    println!("| two builds, and | seconds | of CPU time | memory, MiB | outcome |");
    println!("|---|---:|---:|---:|---|");
    for (what, more, candidate) in [
        ("all loads, no snapshot yet", &[][..], candidate),
        ("all loads", &[], candidate),
        ("`--changed-only`", &["--changed-only"], candidate),
        ("handlers `connect_*`", &["--handler", FEW], candidate),
        ("equal code", &[], baseline),
    ] {
        let mut gate = Command::new(&profiler);
        gate.arg("gate").args([baseline, candidate]).args(more).arg("--quiet");
        gate.arg("--kernel").arg(paths.kernel(series)).env("XDG_CACHE_HOME", cache.path());
        let run = GateRun::of(&mut gate)?;
        println!(
            "| {what} | {:.1} | {:.1} | {} | {} |",
            run.seconds, run.cpu_seconds, run.peak_mib, run.outcome
        );
    }
    println!("\nA snapshot takes {} MiB on the disk.", on_disk(cache.path())? >> 20);
    Ok(())
}

struct GateRun {
    seconds: f64,
    cpu_seconds: f64,
    /// The highest sum over its processes, what several share once.
    peak_mib: u64,
    outcome: String,
}

impl GateRun {
    fn of(command: &mut Command) -> Result<Self> {
        let cpu = || -> Result<f64> {
            let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("no CPU time is known")?;
            let micros =
                usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
            Ok(micros as f64 / 1e6)
        };
        let (before, begun) = (cpu()?, Instant::now());
        let ended = AtomicBool::new(false);
        let (output, peak) = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut peak = 0;
                while !ended.load(Ordering::Relaxed) {
                    peak = peak.max(memory_of_children());
                    thread::sleep(INTERVAL);
                }
                peak
            });
            let output = process::decision(command);
            ended.store(true, Ordering::Relaxed);
            (output, watch.join().unwrap_or(0))
        });
        let (output, seconds) = (output?, begun.elapsed().as_secs_f64());
        let outcome = output.lines().next().unwrap_or_default().split(';').next();
        let outcome = outcome.unwrap_or_default().trim_start_matches("gate: ").to_owned();
        Ok(Self { seconds, cpu_seconds: cpu()? - before, peak_mib: peak >> 20, outcome })
    }
}

/// Bytes of memory of all processes below this one: proc_pid_smaps(5), `Pss`.
fn memory_of_children() -> u64 {
    let parent = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let is_ours = |pid: u32| {
        let mut above = std::iter::successors(parent(pid), |pid| parent(*pid));
        above.any(|pid| pid == std::process::id())
    };
    let kib = |pid: u32| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("Pss:"))?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_ours(*pid)).filter_map(kib).sum::<u64>() << 10
}

/// Bytes that the files below a folder take.
fn on_disk(folder: &Path) -> Result<u64> {
    let text = process::stdout(Command::new("du").args(["--block-size=1", "-s"]).arg(folder))?;
    text.split_whitespace().next().and_then(|word| word.parse().ok()).context("du says nothing")
}
