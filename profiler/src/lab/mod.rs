//! The lab: boots a kernel in a VM, runs this program in it, and collects the recordings.
//!
//! Under virtual time a nanosecond is an instruction of the guest, so that a handler's figures
//! repeat on any machine. [`quiet`] has the options that reduce the remaining spread, [`spread`]
//! measures it. [`guest`] runs in the VM.

pub mod builds;
pub mod cache;
pub mod counts;
pub mod exact;
pub mod gate;
pub mod guest;
pub mod kernel;
mod left;
pub mod lines;
pub mod plan;
mod plugin;
pub mod quiet;
pub mod registered;
mod root;
pub mod session;
mod settings;
pub mod spread;
pub mod table;
pub mod tools;
mod vm;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use profiler_vm::KernelImage;

use crate::error::{Failure, exit};
use crate::load::{PrivateFolder, ProfilerProgram};
use crate::progress::Progress;
use crate::recording::{MAX_FILE_BYTES, Meter, Recording, SeriesPosition};
use crate::text::plural;
use crate::verdict::Side;
use lines::Lines;
use plan::{BootPlan, Build, CountingFiles, Step, Task, sides};
pub use settings::{Options, Settings, has_cost};

/// A folder for temporary files whose name begins with `prefix`, which is removed however this program ends.
///
/// # Errors
/// With [`exit::BAD_OUTPUT`], if it cannot be created.
pub(crate) fn private_folder(prefix: &str) -> Result<PrivateFolder, Failure> {
    let parent = std::env::temp_dir();
    PrivateFolder::new(&parent, prefix, &ProfilerProgram::this())
        .map_err(|error| Failure::cannot_write(&parent, &error))
}

/// A kernel, and the one or two builds to measure on it.
#[derive(Debug, Clone)]
pub struct KernelBuilds {
    /// The kernel.
    pub kernel: KernelImage,
    /// The only build, or the baseline.
    pub baseline: Build,
    /// The candidate.
    pub candidate: Option<Build>,
}

/// Results of the boots of one kernel.
#[derive(Debug, Default)]
pub struct Measured {
    /// Runs of the only build, or of the baseline, by boot and order.
    pub baseline: Vec<Recording>,
    /// Runs of the candidate.
    pub candidate: Vec<Recording>,
    /// Why it ended early, if it did; earlier runs are kept.
    pub failure: Option<Failure>,
}

/// Runs the boots of one kernel with a progress bar of runs.
pub fn run_with_progress(
    bench: &KernelBuilds,
    settings: &Settings,
    progress: &mut Progress,
) -> Measured {
    let sides = if bench.candidate.is_some() { 4 } else { 1 };
    let work = settings.work.len() as u64;
    let runs = u64::from(settings.boots) * u64::from(settings.repeat) * sides * work;
    progress.say(&format!(
        "Linux {}: {} boot{}, {runs} run{}, {} at a time, clock {}",
        bench.kernel.release,
        settings.boots,
        plural(settings.boots),
        plural(runs),
        settings.jobs,
        settings.clock,
    ));
    progress.begin_steps("runs", runs);
    let started = AtomicU64::new(0);
    let bar = &*progress;
    let measured = run(bench, settings, &|| {
        bar.at_step(started.fetch_add(1, Ordering::Relaxed));
    });
    progress.end();
    measured
}

/// Runs all boots; `on_run` is called at the start of each run.
pub fn run(bench: &KernelBuilds, settings: &Settings, on_run: &(dyn Fn() + Sync)) -> Measured {
    let next = AtomicU32::new(0);
    let failed = AtomicBool::new(false);
    let results = Mutex::new((Vec::new(), None));
    let worker = || {
        loop {
            let boot = next.fetch_add(1, Ordering::Relaxed);
            if boot >= settings.boots || failed.load(Ordering::Relaxed) {
                return;
            }
            let (runs, failure) = one_boot(bench, settings, settings.first_boot + boot, on_run);
            failed.fetch_or(failure.is_some(), Ordering::Relaxed);
            // Poisoned only if another worker has panicked, and then the scope panics, too.
            if let Ok(mut results) = results.lock() {
                results.0.extend(runs);
                results.1 = results.1.take().or(failure);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..settings.jobs.clamp(1, settings.boots.max(1)) {
            scope.spawn(worker);
        }
    });
    let (mut runs, failure) = results.into_inner().unwrap_or_default();
    runs.sort_by_key(|(_, recording): &(Side, Recording)| {
        recording.place.as_ref().map(|place| (place.boot, place.order))
    });
    let mut measured = Measured { failure, ..Measured::default() };
    for (side, recording) in runs {
        match side {
            Side::Baseline => measured.baseline.push(recording),
            Side::Candidate => measured.candidate.push(recording),
        }
    }
    measured
}

/// One boot: its recordings, and why there are no more.
fn one_boot(
    bench: &KernelBuilds,
    settings: &Settings,
    boot: u32,
    on_run: &(dyn Fn() + Sync),
) -> (Vec<(Side, Recording)>, Option<Failure>) {
    let folder = settings.folder.join(format!("boot-{boot}"));
    let plan = make_plan(bench, settings, boot, &folder);
    let written = fs::create_dir_all(&folder)
        .map_err(|error| error.to_string())
        .and_then(|()| {
            serde_json::to_vec(&Task::Boot(Box::new(plan.clone())))
                .map_err(|error| error.to_string())
        })
        .and_then(|text| fs::write(folder.join(vm::TASK), text).map_err(|error| error.to_string()));
    if let Err(error) = written {
        let text = format!("cannot write below {}: {error}", folder.display());
        return (Vec::new(), Some(Failure::new(exit::INTERNAL, text)));
    }
    let failure = vm::run(bench, settings, &plan, &folder, on_run).err();
    let mut runs = Vec::new();
    let mut unreadable = None;
    let mut lines = HashMap::new();
    for step in plan.steps.iter().filter(|step| step.result.symlink_metadata().is_ok()) {
        match result(&plan, step, &mut lines) {
            Ok(recording) => runs.push((step.side, recording)),
            Err(error) => unreadable = unreadable.or(Some(error)),
        }
    }
    // What was cut off by the end of the guest is not the error to report.
    let failure = failure.or(unreadable);
    let failure = failure.or_else(|| {
        (runs.len() < plan.steps.len()).then(|| {
            let text = format!(
                "boot {boot} brought {} of {} runs and no error: this is a fault of the profiler",
                runs.len(),
                plan.steps.len()
            );
            Failure::new(exit::INTERNAL, text)
        })
    });
    (runs, failure)
}

/// The recording of one run, with its place and the driver's cost per operation.
fn result(
    plan: &BootPlan,
    step: &Step,
    lines: &mut HashMap<Side, Lines>,
) -> Result<Recording, Failure> {
    let unreadable = |path: &Path, error: &dyn std::fmt::Display| {
        let text = format!(
            "boot {}, run {}: cannot read {}: {error}",
            plan.boot,
            step.order,
            path.display()
        );
        Failure::new(exit::LAB_FAILED, text)
    };
    let bytes = left::read(&step.result, MAX_FILE_BYTES);
    let bytes = bytes.map_err(|error| unreadable(&step.result, &error))?;
    let mut recording = Recording::parse(&bytes, &step.result)?;
    let part = plan.work.get(step.job).and_then(|job| job.part.clone());
    recording.place = Some(SeriesPosition { boot: plan.boot, order: step.order, part });
    if plan.counting.is_some() {
        exact::add(&mut recording, plan, step, lines)?;
    }
    if plan.cost.is_some() {
        let bytes = left::read(&step.costs, MAX_FILE_BYTES);
        let bytes = bytes.map_err(|error| unreadable(&step.costs, &error))?;
        let costs = serde_json::from_slice(&bytes);
        recording.driver_costs = costs.map_err(|error| unreadable(&step.costs, &error))?;
    }
    Ok(recording)
}

fn make_plan(bench: &KernelBuilds, settings: &Settings, boot: u32, folder: &Path) -> BootPlan {
    let last = settings.work.len().saturating_sub(1);
    let each = |side| (0..settings.work.len()).map(move |job| (side, job));
    let sides = sides(boot, settings.repeat, bench.candidate.is_some()).into_iter().flat_map(each);
    let step = |(order, (side, job))| Step {
        side,
        order,
        job,
        loads: job == 0,
        unloads: job == last,
        result: folder.join(format!("run-{order}.json")),
        costs: folder.join(format!("costs-{order}.json")),
        counts: folder.join(format!("counts-{order}")),
        handlers: folder.join(format!("handlers-{order}.json")),
    };
    BootPlan {
        boot,
        baseline: bench.baseline.clone(),
        candidate: bench.candidate.clone(),
        work: settings.work.clone(),
        cost: settings.cost.clone(),
        counting: settings.work.iter().any(|job| job.run.meter == Meter::Exact).then(|| {
            CountingFiles { symbols: folder.join("symbols"), counts: folder.join("counts") }
        }),
        steps: (0..).zip(sides).map(step).collect(),
        failure: folder.join(vm::FAILURE),
    }
}
