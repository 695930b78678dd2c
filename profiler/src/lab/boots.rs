//! Runs with probes in a guest: restored from the base snapshot under virtual time, booted for the wall clock.

use std::fs;
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
        let interrupts = interrupts()?;
        let maker = Maker::new(&builds.kernel, settings, &interrupts)?;
        let base = match settings.options.run.clock {
            Clock::Virtual => Some(maker.base("", say)?),
            Clock::Wall => None,
        };
        let initramfs =
            maker.initramfs(&folder.join("boot")).map_err(Failure::cannot_write(folder))?;
        let files = Files::of(builds.builds(), &builds.kernel)?;
        fs::write(folder.join("files"), &files.bytes).map_err(Failure::cannot_write(folder))?;
        Ok(Self { builds, settings, interrupts, base, initramfs, files })
    }

    /// Measures all boots; `on_run` is called at the start of each run. Runs before a failure are kept.
    pub(super) fn measure(&self, on_run: &(dyn Fn() + Sync)) -> Measured {
        let measured = Mutex::new(Measured::default());
        let [boots, _] = self.settings.options.boots();
        let boots: Vec<u32> = (0..boots).collect();
        let (_, failure) = parallel(&boots, self.settings.options.jobs(), |number| {
            self.boot(*number, on_run, &measured)
        });
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
        let module = Some(&*self.builds.baseline.name);
        let machine = self.machine(&jobs, &folder);
        let mut machine = machine
            .map_err(|error| error.into_failure(&format!("boot {boot}"), module, &folder))?;
        for (order, (side, job)) in runs {
            on_run();
            let recording = measured(&mut machine).map_err(|error| {
                error.into_failure(&format!("boot {boot}, run {order}"), module, &folder)
            })?;
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
        // A machine may have /dev/kvm and yet not boot a stock kernel.
        if fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
            && let start = self.start(&kernel.path)
            && let Ok(machine) = self.booted(spec(start, KVM_LIMIT), Accel::Kvm)
        {
            return Ok(machine);
        }
        let unpacked = kernel.unpacked_in_memory();
        let start = self.start(unpacked.as_ref().unwrap_or(&kernel.path));
        self.booted(spec(start, options.timeout), Accel::Tcg)
    }

    fn start<'b>(&'b self, kernel: &'b Path) -> Start<'b> {
        Start::Boot { kernel, initramfs: &self.initramfs, arguments: "" }
    }

    /// Boots for the wall clock.
    fn booted(&self, spec: Spec<'_>, accel: Accel) -> Result<Machine<'_>, MachineError> {
        let options = &self.settings.options;
        let spec = Spec { time: Time::Wall, cpus: options.cpus(), accel, ..spec };
        let mut machine = Machine::start(spec, &self.interrupts)?;
        machine.booted()?;
        machine.deadline = Instant::now() + options.timeout;
        Ok(machine)
    }
}

/// Has the guest do the jobs of a run.
fn measured(machine: &mut Machine<'_>) -> Result<Recording, MachineError> {
    machine.next_answer()?;
    let (_, bytes) = machine.next_answer()?;
    machine.next_answer()?;
    Recording::parse(&bytes, Path::new("guest"))
        .map_err(|error| MachineError::Broken(format!("the guest's recording is damaged: {error}")))
}
