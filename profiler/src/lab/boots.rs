//! Runs with probes, in the same guest: under virtual time from the base snapshot, on the wall clock in a boot of its own.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use profiler_vm::{Accel, Interrupts, Time};

use super::files::Files;
use super::machine::{Hardware, Machine, MachineError, Spec, Start};
use super::plan::{Job, RunSpec, sides};
use super::pool::parallel;
use super::snapshots::{Base, Maker};
use super::wire::{self, Answer, Install};
use super::{KernelBuilds, Measured, Settings};
use crate::error::{Failure, exit};
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

/// Measures all boots; `on_run` is called at the start of each run.
///
/// # Errors
/// If nothing could be begun.
pub(super) fn measure(
    builds: &KernelBuilds,
    settings: &Settings,
    say: &dyn Fn(&str),
    on_run: &(dyn Fn() + Sync),
) -> Result<Measured, Failure> {
    let folder = &settings.folder;
    let unwritable = |error: io::Error| Failure::cannot_write(folder, &error);
    fs::create_dir_all(folder).map_err(unwritable)?;
    let interrupts =
        Interrupts::catch().map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    let maker = Maker {
        kernel: &builds.kernel,
        memory: &settings.memory,
        scratch: folder,
        interrupts: &interrupts,
    };
    let base = match settings.clock {
        Clock::Virtual => Some(maker.base(say)?),
        Clock::Wall => None,
    };
    let initramfs = maker.initramfs(&folder.join("boot")).map_err(unwritable)?;
    let of_builds: Vec<_> =
        [Some(&builds.baseline), builds.candidate.as_ref()].into_iter().flatten().collect();
    let files = Files::of(&of_builds, &builds.kernel)?;
    files.write(&folder.join("files")).map_err(unwritable)?;
    let lab =
        Boots { builds, settings, interrupts: &interrupts, base, initramfs: &initramfs, files };
    let numbers: Vec<u32> = (0..settings.boots).collect();
    let (boots, failure) = parallel(&numbers, settings.jobs, |boot| lab.boot(*boot, on_run));
    let mut measured = Measured { failure, ..Measured::default() };
    for (runs, failure) in boots {
        for (side, recording) in runs {
            match side {
                Side::Baseline => measured.baseline.push(recording),
                Side::Candidate => measured.candidate.push(recording),
            }
        }
        measured.failure = measured.failure.or(failure);
    }
    Ok(measured)
}

struct Boots<'a> {
    builds: &'a KernelBuilds,
    settings: &'a Settings,
    interrupts: &'a Interrupts,
    base: Option<Base>,
    initramfs: &'a Path,
    files: Files,
}

type Runs = Vec<(Side, Recording)>;

impl Boots<'_> {
    /// One boot: its recordings, and why there are no more.
    fn boot(
        &self,
        boot: u32,
        on_run: &(dyn Fn() + Sync),
    ) -> Result<(Runs, Option<Failure>), Failure> {
        let two = self.builds.candidate.is_some();
        let sides = sides(boot, self.settings.repeat, two);
        let each = |side| self.settings.work.iter().map(move |job| (side, job));
        let steps: Vec<Step<'_>> = (0..)
            .zip(sides.into_iter().flat_map(each))
            .map(|(order, (side, job))| Step { side, order, job })
            .collect();
        let jobs: Vec<wire::Job> = steps.iter().flat_map(|step| self.jobs(step, boot)).collect();
        let mut runs = Vec::new();
        let release = &self.builds.kernel.release;
        let name = format!("{release}-boot-{boot}");
        let folder = self.settings.logs.as_ref().unwrap_or(&self.settings.folder).join(name);
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
        let number = usize::from(step.side == Side::Candidate);
        let mut modules = self.files.modules_of_build(name, number);
        if step.order > 0 {
            // What it depends on is loaded.
            modules = modules.pop().into_iter().collect();
        }
        // The history of a placement is made once.
        let placement =
            if step.order == 0 && self.settings.clock == Clock::Virtual { boot } else { 0 };
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
        if let Some(base) = &self.base {
            let hardware = self.hardware(Accel::Tcg);
            return self.started(
                Start::Restore(base.folder()),
                &hardware,
                jobs,
                folder,
                self.settings.timeout,
            );
        }
        if fs::File::options().read(true).write(true).open("/dev/kvm").is_ok() {
            let hardware = self.hardware(Accel::Kvm);
            let kernel = &self.builds.kernel.path;
            let start = Start::Boot { kernel, initramfs: self.initramfs };
            // A machine may have /dev/kvm and yet not boot a stock kernel.
            if let Ok(machine) = self.booted(start, &hardware, jobs, folder, KVM_LIMIT) {
                return Ok(machine);
            }
        }
        let kernel = self.builds.kernel.unpacked_in_memory();
        let kernel = kernel.as_ref().unwrap_or(&self.builds.kernel.path);
        let start = Start::Boot { kernel, initramfs: self.initramfs };
        self.booted(start, &self.hardware(Accel::Tcg), jobs, folder, self.settings.timeout)
    }

    fn booted<'b>(
        &'b self,
        start: Start<'_>,
        hardware: &Hardware,
        jobs: &[wire::Job],
        folder: &Path,
        limit: Duration,
    ) -> Result<Machine<'b>, MachineError> {
        let mut machine = self.started(start, hardware, jobs, folder, limit)?;
        let (answer, _) = machine.answer()?;
        machine.extend(Instant::now() + self.settings.timeout);
        match answer {
            Answer::Booted(_) => Ok(machine),
            _ => Err(MachineError::Broken("the guest did not say that it is up".to_owned())),
        }
    }

    fn started<'b>(
        &'b self,
        start: Start<'_>,
        hardware: &Hardware,
        jobs: &[wire::Job],
        folder: &Path,
        limit: Duration,
    ) -> Result<Machine<'b>, MachineError> {
        let files = self.settings.folder.join("files");
        let spec = Spec {
            hardware,
            start,
            saved_to: None,
            jobs,
            files: Some(&files),
            plugin: None,
            folder,
            deadline: Instant::now() + limit,
            module: Some(&self.builds.baseline.name),
        };
        Machine::start(spec, self.interrupts)
    }

    fn hardware(&self, accel: Accel) -> Hardware {
        let time = match self.settings.clock {
            Clock::Virtual => Time::Virtual,
            Clock::Wall => Time::Wall,
        };
        let (arch, memory) = (self.builds.kernel.arch, self.settings.memory.clone());
        Hardware { arch, memory, time, cpus: self.settings.cpus, accel }
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
