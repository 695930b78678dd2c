//! Runs with probes, in the same guest: under virtual time from the base snapshot, on the wall clock in a boot of its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use profiler_vm::{Accel, Interrupts, Time};

use super::files::Files;
use super::machine::{Hardware, Machine, MachineError, Spec, Start};
use super::plan::{Job, RunSpec, sides};
use super::pool::parallel;
use super::snapshots::{Base, Maker, interrupts};
use super::wire::{self, Answer, Install};
use super::{KernelBuilds, Measured, Settings};
use crate::error::Failure;
use crate::recording::{Clock, Recording, SeriesPosition};
use crate::verdict::Side;

/// Operations that warm up, as a part of those that are measured.
const WARMUP_PART: u32 = 10;

/// Longest that a kernel may take to boot by KVM: a nested one may hang there.
const KVM_LIMIT: Duration = Duration::from_secs(40);

/// A run of a boot.
struct Step<'a> {
    side: Side,
    order: u32,
    job: &'a Job,
}

/// What the boots of one kernel need.
pub(super) struct Boots<'a> {
    builds: &'a KernelBuilds,
    settings: &'a Settings,
    interrupts: Interrupts,
    base: Option<Base>,
    initramfs: PathBuf,
    files: Files,
}

type Runs = Vec<(Side, Recording)>;

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
            Clock::Virtual => Some(maker.base(say)?),
            Clock::Wall => None,
        };
        let initramfs = maker.initramfs(&folder.join("boot")).map_err(unwritable)?;
        let files = Files::of(builds.builds(), &builds.kernel)?;
        files.write(&folder.join("files")).map_err(unwritable)?;
        Ok(Self { builds, settings, interrupts, base, initramfs, files })
    }

    /// Measures all boots; `on_run` is called at the start of each run.
    pub(super) fn measure(&self, on_run: &(dyn Fn() + Sync)) -> Measured {
        let [boots, _] = self.settings.options.boots();
        let numbers: Vec<u32> = (0..boots).collect();
        let (boots, failure) =
            parallel(&numbers, self.settings.options.jobs(), |boot| self.boot(*boot, on_run));
        let mut measured = Measured { failure, ..Measured::default() };
        for (runs, failure) in boots {
            runs.into_iter().for_each(|(side, recording)| measured.of_side(side).push(recording));
            measured.failure = measured.failure.or(failure);
        }
        measured
    }

    /// One boot: its recordings, and why there are no more.
    fn boot(
        &self,
        boot: u32,
        on_run: &(dyn Fn() + Sync),
    ) -> Result<(Runs, Option<Failure>), Failure> {
        let [_, repeat] = self.settings.options.boots();
        let sides = sides(boot, repeat, self.builds.candidate.is_some());
        let each = |side| self.settings.work.iter().map(move |job| (side, job));
        let steps: Vec<Step<'_>> = (0..)
            .zip(sides.into_iter().flat_map(each))
            .map(|(order, (side, job))| Step { side, order, job })
            .collect();
        let jobs: Vec<wire::Job> = steps.iter().flat_map(|step| self.jobs(step, boot)).collect();
        let mut runs = Vec::new();
        let release = &self.builds.kernel.release;
        let name = format!("{release}-boot-{boot}");
        let folder =
            self.settings.options.logs.as_ref().unwrap_or(&self.settings.folder).join(name);
        let failed = |error: MachineError, run: Option<u32>| {
            let run = run.map_or(String::new(), |run| format!(", run {run}"));
            let module = Some(&*self.builds.baseline.name);
            error.into_failure(&format!("boot {boot}{run}"), module, &folder)
        };
        let mut machine = self.machine(&jobs, &folder).map_err(|error| failed(error, None))?;
        for step in &steps {
            on_run();
            match self.step(&mut machine, step, boot) {
                Ok(recording) => runs.push((step.side, recording)),
                Err(error) => return Ok((runs, Some(failed(error, Some(step.order))))),
            }
        }
        Ok((runs, None))
    }

    /// What the guest does for a run: it loads the build, measures and unloads it.
    fn jobs(&self, step: &Step<'_>, boot: u32) -> [wire::Job; 3] {
        let name = &self.builds.baseline.name;
        let mut modules = self.files.modules_of(name, step.side as usize);
        if step.order > 0 {
            // What it depends on is loaded.
            modules = modules.pop().into_iter().collect();
        }
        // The history of a placement is made once.
        let placement = if step.order == 0 && self.base.is_some() { boot } else { 0 };
        let run = step.job.run.clone();
        let warmup = RunSpec { length: run.length.part(WARMUP_PART), ..run.clone() };
        [
            wire::Job::Install(Install { placement, modules, agent: None }),
            wire::Job::Measure { module: name.clone(), warmup, run },
            wire::Job::Remove(name.clone()),
        ]
    }

    /// A machine whose guest is up and stopped.
    fn machine<'b>(
        &'b self,
        jobs: &'b [wire::Job],
        folder: &'b Path,
    ) -> Result<Machine<'b>, MachineError> {
        let limit = self.settings.options.timeout;
        if let Some(base) = &self.base {
            return self.start(Start::Restore(&base.folder), Accel::Tcg, jobs, folder, limit);
        }
        let (kernel, initramfs) = (&self.builds.kernel, &self.initramfs);
        if fs::File::options().read(true).write(true).open("/dev/kvm").is_ok() {
            let start = Start::Boot { kernel: &kernel.path, initramfs, arguments: "" };
            // A machine may have /dev/kvm and yet not boot a stock kernel.
            if let Ok(machine) = self.start(start, Accel::Kvm, jobs, folder, KVM_LIMIT) {
                return Ok(machine);
            }
        }
        let unpacked = kernel.unpacked_in_memory();
        let kernel = unpacked.as_ref().unwrap_or(&kernel.path);
        let start = Start::Boot { kernel, initramfs, arguments: "" };
        self.start(start, Accel::Tcg, jobs, folder, limit)
    }

    fn start<'b>(
        &'b self,
        start: Start<'_>,
        accel: Accel,
        jobs: &[wire::Job],
        folder: &Path,
        limit: Duration,
    ) -> Result<Machine<'b>, MachineError> {
        let options = &self.settings.options;
        let hardware = Hardware {
            time: if self.base.is_some() { Time::Virtual } else { Time::Wall },
            cpus: options.cpus(),
            accel,
            ..Hardware::counted(self.builds.kernel.arch, &options.memory)
        };
        let files = self.settings.folder.join("files");
        let spec = Spec { jobs, files: Some(&files), ..Spec::new(hardware, start, folder, limit) };
        let mut machine = Machine::start(spec, &self.interrupts)?;
        if let Start::Boot { .. } = start {
            let (answer, _) = machine.answer()?;
            machine.extend(Instant::now() + options.timeout);
            if !matches!(answer, Answer::Booted(_)) {
                let text = "the guest did not say that it is up".to_owned();
                return Err(MachineError::Broken(text));
            }
        }
        Ok(machine)
    }

    fn step(
        &self,
        machine: &mut Machine<'_>,
        step: &Step<'_>,
        boot: u32,
    ) -> Result<Recording, MachineError> {
        let mut next = || {
            machine.go_on()?;
            machine.answer()
        };
        next()?;
        let (_, bytes) = next()?;
        next()?;
        let broken = |error: &dyn std::fmt::Display| {
            MachineError::Broken(format!("the guest's recording is damaged: {error}"))
        };
        let mut recording =
            Recording::parse(&bytes, Path::new("guest")).map_err(|error| broken(&error))?;
        let part = step.job.part.clone();
        recording.place = Some(SeriesPosition { boot, order: step.order, part });
        Ok(recording)
    }
}
