//! Runs with probes in a guest: restored from the base snapshot under virtual time, booted for the wall clock.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use profiler_vm::{Accel, Interrupts, Time};

use super::files::Files;
use super::machine::{Machine, MachineError, Spec, Start};
use super::plan::{Job, RunSpec, sides};
use super::pool::parallel;
use super::snapshots::{Base, Maker, interrupts};
use super::wire::{self, Install};
use super::{KernelBuilds, Measured, Settings};
use crate::error::Failure;
use crate::recording::{Clock, Recording, SeriesPosition};
use crate::verdict::Side;

/// Operations that warm up, as a part of those that are measured.
const WARMUP_PART: u32 = 10;

/// Longest that a kernel may take to boot by KVM: a nested one may hang there.
const KVM_LIMIT: Duration = Duration::from_secs(40);

/// What the boots of one kernel need.
pub(super) struct Boots<'a> {
    builds: &'a KernelBuilds,
    settings: &'a Settings,
    interrupts: Interrupts,
    base: Option<Base>,
    initramfs: PathBuf,
    files: Files,
}

impl<'a> Boots<'a> {
    /// Opens the base snapshot under virtual time; `say` gets what takes time.
    ///
    /// # Errors
    /// If a build cannot be read, or the kernel does not boot.
    pub(super) fn open(
        builds: &'a KernelBuilds,
        settings: &'a Settings,
        say: &dyn Fn(&str),
    ) -> Result<Self, Failure> {
        let folder = &settings.folder;
        let unwritable = |error: io::Error| Failure::cannot_write(folder, &error);
        let interrupts = interrupts()?;
        let maker = Maker::new(&builds.kernel, settings, &interrupts)?;
        let base = match settings.options.run.clock {
            Clock::Virtual => Some(maker.base("", say)?),
            Clock::Wall => None,
        };
        let initramfs = maker.initramfs(&folder.join("boot")).map_err(unwritable)?;
        let files = Files::of(builds.builds(), &builds.kernel)?;
        fs::write(folder.join("files"), &files.bytes).map_err(unwritable)?;
        Ok(Self { builds, settings, interrupts, base, initramfs, files })
    }

    /// Measures all boots; `on_run` is called at the start of each run. Runs before a failure are kept.
    pub(super) fn measure(&self, on_run: &(dyn Fn() + Sync)) -> Measured {
        let measured = Mutex::new(Measured::default());
        let [boots, _] = self.settings.options.boots();
        let boots: Vec<u32> = (0..boots).collect();
        let boot = |number: &u32| self.boot(*number, on_run, &measured);
        let (_, failure) = parallel(&boots, self.settings.options.jobs(), boot);
        Measured { failure, ..measured.into_inner().unwrap_or_else(PoisonError::into_inner) }
    }

    /// One boot, whose recordings `all` gets.
    fn boot(
        &self,
        boot: u32,
        on_run: &(dyn Fn() + Sync),
        all: &Mutex<Measured>,
    ) -> Result<(), Failure> {
        let Settings { options, work, folder, .. } = self.settings;
        let [_, repeat] = options.boots();
        let sides = sides(boot, repeat, self.builds.candidate.is_some());
        let runs = sides.into_iter().flat_map(|side| work.iter().map(move |job| (side, job)));
        let runs: Vec<(u32, (Side, &Job))> = (0..).zip(runs).collect();
        let jobs: Vec<wire::Job> = runs
            .iter()
            .flat_map(|(order, (side, job))| self.jobs(boot, *order, *side, job))
            .collect();
        let name = format!("{}-boot-{boot}", self.builds.kernel.release);
        let folder = options.logs.as_ref().unwrap_or(folder).join(name);
        let failed = |run: &str, error: MachineError| {
            let module = Some(&*self.builds.baseline.name);
            error.into_failure(&format!("boot {boot}{run}"), module, &folder)
        };
        let mut machine = self.machine(&jobs, &folder).map_err(|error| failed("", error))?;
        for (order, (side, job)) in runs {
            on_run();
            let recording =
                measured(&mut machine).map_err(|error| failed(&format!(", run {order}"), error))?;
            let place = SeriesPosition { boot, order, part: job.part.clone() };
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.of_side(side).push(Recording { place: Some(place), ..recording });
        }
        Ok(())
    }

    /// What the guest does for a run: it loads the build, measures and unloads it.
    fn jobs(&self, boot: u32, order: u32, side: Side, job: &Job) -> [wire::Job; 3] {
        let name = &self.builds.baseline.name;
        let mut modules = self.files.modules_of(name, side as usize);
        if order > 0 {
            // What it depends on is loaded.
            modules = modules.pop().into_iter().collect();
        }
        // The history of a placement is made once.
        let placement = if order == 0 && self.base.is_some() { boot } else { 0 };
        let run = job.run.clone();
        let warmup = RunSpec { length: run.length.part(WARMUP_PART), ..run.clone() };
        [
            wire::Job::Install(Install { placement, modules, agent: None }),
            wire::Job::Measure { module: name.clone(), warmup, run },
            wire::Job::Remove(name.clone()),
        ]
    }

    /// A machine whose guest is up and stopped.
    fn machine(&self, jobs: &[wire::Job], folder: &Path) -> Result<Machine<'_>, MachineError> {
        let (kernel, options) = (&self.builds.kernel, &self.settings.options);
        let files = self.settings.folder.join("files");
        let spec = |start, limit| Spec {
            jobs,
            files: Some(&files),
            ..Spec::counted(kernel.arch, &options.memory, start, folder, limit)
        };
        if let Some(base) = &self.base {
            let spec = spec(Start::Restore(&base.folder), options.timeout);
            return Machine::start(spec, &self.interrupts);
        }
        let boot = |kernel, accel, limit| {
            let start = Start::Boot { kernel, initramfs: &self.initramfs, arguments: "" };
            let cpus = options.cpus();
            let spec = Spec { time: Time::Wall, cpus, accel, ..spec(start, limit) };
            let mut machine = Machine::start(spec, &self.interrupts)?;
            machine.booted()?;
            machine.deadline = Instant::now() + options.timeout;
            Ok(machine)
        };
        // A machine may have /dev/kvm and yet not boot a stock kernel.
        if fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
            && let Ok(machine) = boot(&kernel.path, Accel::Kvm, KVM_LIMIT)
        {
            return Ok(machine);
        }
        let unpacked = kernel.unpacked_in_memory();
        boot(unpacked.as_ref().unwrap_or(&kernel.path), Accel::Tcg, options.timeout)
    }
}

/// Has the guest do the jobs of a run.
fn measured(machine: &mut Machine<'_>) -> Result<Recording, MachineError> {
    let mut next = || {
        machine.go_on()?;
        machine.answer()
    };
    next()?;
    let (_, bytes) = next()?;
    next()?;
    Recording::parse(&bytes, Path::new("guest"))
        .map_err(|error| MachineError::Broken(format!("the guest's recording is damaged: {error}")))
}
