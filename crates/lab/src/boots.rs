//! Runs with probes in a guest: restored from the base snapshot under virtual time, booted for the wall clock.

use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use profiler_base::error::Failure;
use profiler_recording::{Clock, Recording, SeriesPosition};
use profiler_verdict::Side;
use profiler_vm::Accel;

use super::files;
use super::machine::{Machine, MachineError, Spec, Start};
use super::plan::sides;
use super::pool::parallel;
use super::snapshots::{self, Base};
use super::wire::{self, Answer, Install, ModuleFile};
use super::{KernelBuilds, Measured, Options};

/// Longest that a kernel may take to boot by KVM: a nested one may hang there.
const KVM_LIMIT: Duration = Duration::from_secs(40);

/// What the boots of one kernel need.
pub(super) struct Boots<'a> {
    builds: &'a KernelBuilds,
    options: &'a Options,
    base: Option<Base>,
    /// The modules of all builds, and their files.
    modules: Vec<ModuleFile>,
    files: Vec<u8>,
}

impl<'a> Boots<'a> {
    /// Opens the base snapshot under virtual time; `say` gets what takes time.
    ///
    /// # Errors
    /// If a build cannot be read, or the kernel does not boot.
    pub(super) fn open(
        builds: &'a KernelBuilds,
        options: &'a Options,
        say: &dyn Fn(&str),
    ) -> Result<Self, Failure> {
        snapshots::prepare(&builds.folder)?;
        let base = match options.run.clock {
            Clock::Virtual => Some(snapshots::base(builds, options, "", say)?),
            Clock::Wall => None,
        };
        let mut files = Vec::new();
        let modules = files::pack(&builds.builds, &builds.kernel, &mut files)?;
        Ok(Self { builds, options, base, modules, files })
    }

    /// Measures all boots; `on_run` is called at the start of each run. Runs before a failure are kept.
    pub(super) fn measure(&self, on_run: &(dyn Fn() + Sync)) -> Measured {
        let measured = Mutex::new(Measured::default());
        let [boots, _] = self.options.boots();
        let boots: Vec<u32> = (0..boots).collect();
        let (_, failure) =
            parallel(&boots, self.options.jobs(), |number| self.boot(*number, on_run, &measured));
        Measured { failure, ..measured.into_inner().unwrap_or_else(PoisonError::into_inner) }
    }

    /// One boot, whose recordings `all` gets.
    fn boot(
        &self,
        boot: u32,
        on_run: &(dyn Fn() + Sync),
        all: &Mutex<Measured>,
    ) -> Result<(), Failure> {
        let builds = &self.builds.builds;
        let [_, repeat] = self.options.boots();
        let sides = sides(boot, repeat, builds.len() > 1);
        let runs: Vec<(u32, Side)> = (0..).zip(sides).collect();
        let jobs: Vec<wire::Job> =
            runs.iter().map(|(order, side)| self.job(boot, *order, *side)).collect();
        let folder = self.builds.machine_folder(self.options, &format!("boot-{boot}"));
        let module = Some(&*builds[0].name);
        let machine = self.machine(&jobs, &folder);
        let mut machine = machine
            .map_err(|error| error.into_failure(&format!("boot {boot}"), module, &folder))?;
        for (order, side) in runs {
            on_run();
            let recording = measured(&mut machine).map_err(|error| {
                error.into_failure(&format!("boot {boot}, run {order}"), module, &folder)
            })?;
            let place = SeriesPosition { boot, order, part: None };
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.runs[side as usize].push(Recording { place: Some(place), ..recording });
        }
        Ok(())
    }

    /// What the guest does for a run: it loads the build, measures and unloads it.
    fn job(&self, boot: u32, order: u32, side: Side) -> wire::Job {
        let name = &self.builds.builds[0].name;
        let (own, needed): (Vec<_>, Vec<_>) =
            self.modules.iter().cloned().partition(|module| module.name == *name);
        // What they depend on stays loaded.
        let needed = needed.into_iter().filter(|_| order == 0);
        let modules = needed.chain(own.into_iter().nth(side as usize)).collect();
        // The history of a placement is made once.
        let placement = if order == 0 && self.base.is_some() { boot } else { 0 };
        let install = Install { placement, modules, agent: None };
        wire::Job::Measure { install, run: self.options.run.clone() }
    }

    /// A machine whose guest is up and stopped.
    fn machine(&self, jobs: &[wire::Job], folder: &Path) -> Result<Machine, MachineError> {
        let (kernel, options) = (&self.builds.kernel, self.options);
        let spec = |start, limit| Spec {
            jobs,
            files: &self.files,
            ..Spec::counted(kernel, &options.memory, start, folder, limit)
        };
        if let Some(base) = &self.base {
            return Machine::start(spec(Start::Restore(&base.folder), options.timeout));
        }
        // A machine may have /dev/kvm and yet not boot a stock kernel.
        if File::options().read(true).write(true).open("/dev/kvm").is_ok()
            && let Ok(machine) = self.booted(spec(Start::Boot(""), KVM_LIMIT), Accel::Kvm)
        {
            return Ok(machine);
        }
        self.booted(spec(Start::Boot(""), options.timeout), Accel::Tcg)
    }

    /// Boots for the wall clock.
    fn booted(&self, spec: Spec<'_>, accel: Accel) -> Result<Machine, MachineError> {
        let options = self.options;
        let mut machine = Machine::start(Spec { wall: Some((accel, options.cpus())), ..spec })?;
        machine.booted()?;
        machine.deadline = Instant::now() + options.timeout;
        Ok(machine)
    }
}

/// Has the guest do the job of a run.
fn measured(machine: &mut Machine) -> Result<Recording, MachineError> {
    let is_measured = |answer| (answer == Answer::Measured).then_some(());
    let ((), bytes) = machine.next_answer(is_measured)?;
    Recording::parse(&bytes, Path::new("guest"))
        .map_err(|error| MachineError::Broken(format!("the guest's recording is damaged: {error}")))
}
