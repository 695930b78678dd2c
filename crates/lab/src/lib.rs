//! The lab: measures builds of a driver, or versions of a program that attaches BPF programs, in guests of its own.
//!
//! A guest is a kernel, this program as its first process, and nothing else. Booted once, it is kept as a snapshot
//! ([`snapshots`]); a build is installed there, which is the next snapshot, and each run is restored from that one and thrown away
//! ([`runs`]). Under virtual time a nanosecond is an instruction, and nothing of the host is seen in the guest, so that a run
//! repeats to the bit on any machine. [`boots`] runs probes in the same guest. [`guest`] is what runs there, [`wire`] what both say.

pub mod agent;
mod boots;
mod bpf_lines;
pub mod builds;
mod cache;
pub mod changed;
pub mod counts;
pub mod exact;
mod files;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod gate;
pub mod guest;
pub mod hooks;
mod initramfs;
mod installs;
pub mod kernels;
pub mod lines;
mod machine;
mod memory;
mod pages;
pub mod plan;
mod pool;
pub mod prepare;
mod qmp;
pub mod registered;
mod runs;
mod session;
mod settings;
pub mod slope;
pub mod snapshots;
pub mod subject;
pub mod symbols;
pub mod tax;
mod vectors;
mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use profiler_base::error::Failure;
use profiler_base::progress::Progress;
use profiler_base::text::plural;
use profiler_load::{PrivateFolder, ProfilerProgram};
use profiler_recording::{Meter, Recording};
use profiler_vm::KernelImage;

use boots::Boots;
use plan::Job;
use runs::{Lab, Task};
pub use settings::{Options, has_cost, usual_length};
use subject::Build;

/// A folder for temporary files whose name begins with `prefix`, which is removed however this program ends.
///
/// # Errors
/// If it cannot be created.
pub fn private_folder(prefix: &str) -> Result<PrivateFolder, Failure> {
    let parent = std::env::temp_dir();
    PrivateFolder::new(&parent, prefix, &ProfilerProgram::default())
        .map_err(Failure::cannot_write(&parent))
}

/// A kernel, and the one or two builds to measure on it.
#[derive(Debug, Clone)]
pub struct KernelBuilds {
    pub kernel: KernelImage,
    /// The only build, or the baseline and the candidate.
    pub builds: Vec<Build>,
    /// A folder for the files of its guests.
    folder: PathBuf,
}

impl KernelBuilds {
    /// The folder of a machine: one that stays, if the kernel's messages are asked for.
    fn machine_folder(&self, options: &Options, name: &str) -> PathBuf {
        let folder = options.logs.as_ref().unwrap_or(&self.folder);
        folder.join(format!("{}-{name}", self.kernel.release))
    }
}

/// Results of one kernel.
#[derive(Debug, Default)]
pub struct Measured {
    /// Runs of the only build, or of the baseline, and of the candidate, by placement or boot, and order.
    pub runs: [Vec<Recording>; 2],
    /// By build and load, what could not do what was asked; other loads of the same guest are complete.
    pub failed: BTreeMap<String, Failure>,
    /// Why it ended early, if it did; earlier runs are kept.
    pub failure: Option<Failure>,
}

impl Measured {
    /// Takes out why it is not complete, if it is not: why it ended early, or why a load failed.
    pub fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take().or_else(|| Some(self.failed.pop_first()?.1))
    }
}

/// Measures one kernel with a progress bar of runs. A load that fails leaves the others to be measured.
pub fn run_with_progress(
    bench: &KernelBuilds,
    options: &Options,
    jobs: &[Job],
    progress: &mut Progress,
) -> Measured {
    let measured = match options.run.meter {
        Meter::Probes => with_probes(bench, options, progress),
        Meter::Exact => exactly(bench, options, jobs, progress),
    };
    let mut measured = measured
        .unwrap_or_else(|failure| Measured { failure: Some(failure), ..Measured::default() });
    for runs in &mut measured.runs {
        runs.sort_by_key(|run| run.place.as_ref().map(|place| (place.boot, place.order)));
    }
    measured
}

fn exactly(
    bench: &KernelBuilds,
    options: &Options,
    jobs: &[Job],
    progress: &mut Progress,
) -> Result<Measured, Failure> {
    let lab = Lab::open(bench, options, &|line| progress.say(line))?;
    let is_there = |side, _, _: &[Job]| bench.builds.len() > side as usize;
    let tasks = runs::tasks(options.placements(), jobs, is_there);
    Ok(count(&lab, &tasks, progress))
}

/// Does tasks with a progress bar.
fn count(lab: &Lab<'_>, tasks: &[Task<'_>], progress: &mut Progress) -> Measured {
    let runs = tasks.iter().flat_map(|task| &task.guests).map(|guest| guest.len() as u64).sum();
    with_bar(runs, progress, |on_run| lab.measure(tasks, on_run))
}

fn with_probes(
    bench: &KernelBuilds,
    options: &Options,
    progress: &mut Progress,
) -> Result<Measured, Failure> {
    let each = if bench.builds.len() > 1 { 4 } else { 1 };
    let runs = options.boots().map(u64::from).iter().product::<u64>() * each;
    progress.say(&format!(
        "Linux {}: {runs} run{} with probes, clock {}",
        bench.kernel.release,
        plural(runs),
        options.run.clock,
    ));
    let boots = Boots::open(bench, options, &|line| progress.say(line))?;
    Ok(with_bar(runs, progress, |on_run| boots.measure(on_run)))
}

/// Does `work` with a bar of so many runs.
fn with_bar<R>(
    runs: u64,
    progress: &mut Progress,
    work: impl FnOnce(&(dyn Fn() + Sync)) -> R,
) -> R {
    progress.begin_steps("runs", runs);
    let started = AtomicU64::new(0);
    let bar = &*progress;
    let done = work(&|| bar.at_count(started.fetch_add(1, Ordering::Relaxed)));
    progress.end();
    done
}
