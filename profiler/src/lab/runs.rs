//! Exact runs: each build is installed under each placement from one base snapshot, and each run is restored from there.
//!
//! No run depends on another, so any number goes on side by side, and each repeats to the bit.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use profiler_vm::{Accel, Interrupts, Time};
use sha2::{Digest as _, Sha256};

use super::counts::{self, Counts};
use super::files::Files;
use super::lines::Lines;
use super::machine::{Hardware, Machine, MachineError, Spec, Start};
use super::plan::{Build, Job, RunSpec};
use super::plugin::Plugin;
use super::pool::parallel;
use super::snapshots::{Base, Maker};
use super::symbols::Symbols;
use super::wire::{self, Answer, Install};
use super::{KernelBuilds, Measured, Settings, exact, record};
use crate::atomic_file::OutputFile;
use crate::error::{Failure, exit};
use crate::kernel::module::ModuleFacts;
use crate::load::LoadRun;
use crate::recording::{DriverCost, Meter, Recording, SeriesPosition, Snapshot};
use crate::verdict::Side;

/// What the runs of one kernel need.
pub(super) struct Lab<'a> {
    builds: &'a KernelBuilds,
    settings: &'a Settings,
    interrupts: Interrupts,
    base: Base,
    /// The kernel's functions.
    symbols: String,
    plugin: Plugin,
    /// Source lines of each build, which take long to read.
    lines: (Mutex<Lines>, Option<Mutex<Lines>>),
}

/// A build that is installed in a guest.
struct Installed {
    side: Side,
    placement: u32,
    folder: PathBuf,
    module: ModuleFacts,
    symbols: Symbols,
    /// `/proc/modules` and the modules' symbols.
    text: String,
}

/// What was counted in a run.
struct Counted {
    loads: Vec<LoadRun>,
    counts: Counts,
    /// SHA-256 of what the plugin has written.
    checksum: String,
}

impl<'a> Lab<'a> {
    /// Opens the base snapshot of the kernel, or makes it; `say` gets what takes time.
    ///
    /// # Errors
    /// If the kernel does not boot or a build cannot be read.
    pub(super) fn open(
        builds: &'a KernelBuilds,
        settings: &'a Settings,
        say: &dyn Fn(&str),
    ) -> Result<Self, Failure> {
        let folder = &settings.folder;
        let unwritable = |error: io::Error| Failure::cannot_write(folder, &error);
        fs::create_dir_all(folder).map_err(unwritable)?;
        let plugin = Plugin::write(folder).map_err(unwritable)?;
        let interrupts =
            Interrupts::catch().map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
        let maker = Maker {
            kernel: &builds.kernel,
            memory: &settings.memory,
            scratch: folder,
            interrupts: &interrupts,
        };
        let base = maker.base(say)?;
        let symbols = base.symbols().map_err(unwritable)?;
        let read = |build: &Build| {
            Lines::read(&build.file).map(Mutex::new).map_err(|why| {
                let text = format!("cannot read {}: {why}", build.file.display());
                Failure::new(exit::BAD_INPUT, text)
            })
        };
        let lines = (read(&builds.baseline)?, builds.candidate.as_ref().map(read).transpose()?);
        Ok(Self { builds, settings, interrupts, base, symbols, plugin, lines })
    }

    /// Counts the jobs on these builds under each placement from `first` on; `on_run` is called at the start of each run.
    /// What was complete before a failure is kept.
    pub(super) fn measure(
        &self,
        sides: &[Side],
        placements: std::ops::Range<u32>,
        jobs: &[Job],
        on_run: &(dyn Fn() + Sync),
    ) -> Measured {
        let mut measured = Measured::default();
        let without = match self.without(jobs) {
            Ok(without) => without,
            Err(failure) => return Measured { failure: Some(failure), ..measured },
        };
        let pairs: Vec<(Side, u32)> =
            placements.flat_map(|number| sides.iter().map(move |side| (*side, number))).collect();
        for pairs in pairs.chunks(CHUNK) {
            let (installed, failure) =
                parallel(pairs, self.settings.jobs, |(side, number)| self.install(*side, *number));
            measured.failure = failure;
            let each = |installed| (0..jobs.len()).map(move |job| (installed, job));
            let runs: Vec<(&Installed, usize)> = installed.iter().flat_map(each).collect();
            let (recordings, failure) = parallel(&runs, self.settings.jobs, |(installed, job)| {
                on_run();
                let recording = self.run(installed, &jobs[*job], without.get(job))?;
                Ok((installed.side, recording))
            });
            for (side, recording) in recordings {
                match side {
                    Side::Baseline => measured.baseline.push(recording),
                    Side::Candidate => measured.candidate.push(recording),
                }
            }
            measured.failure = measured.failure.or(failure);
            for installed in &installed {
                // Else they go with the folder of all.
                let _ = fs::remove_dir_all(&installed.folder);
            }
            if measured.failure.is_some() {
                break;
            }
        }
        measured
    }

    fn build(&self, side: Side) -> &Build {
        match (side, &self.builds.candidate) {
            (Side::Candidate, Some(candidate)) => candidate,
            _ => &self.builds.baseline,
        }
    }

    /// Starts a machine from a snapshot, has it do one job, and gives its answer.
    fn run_job<R>(
        &self,
        at: &str,
        spec: Spec<'_>,
        then: impl FnOnce(&mut Machine<'_>) -> Result<R, MachineError>,
    ) -> Result<(Answer, Vec<u8>, R), Failure> {
        let (folder, module) = (spec.folder, spec.module);
        let run = || {
            let mut machine = Machine::start(spec, &self.interrupts)?;
            machine.go_on()?;
            let (answer, attachment) = machine.answer()?;
            let more = then(&mut machine)?;
            Ok((answer, attachment, more))
        };
        run().map_err(|error: MachineError| error.into_failure(at, module, folder))
    }

    fn spec<'b>(
        &'b self,
        state: &'b Path,
        folder: &'b Path,
        hardware: &'b Hardware,
        jobs: &'b [wire::Job],
    ) -> Spec<'b> {
        Spec {
            hardware,
            start: Start::Restore(state),
            jobs,
            files: None,
            plugin: None,
            folder,
            deadline: Instant::now() + self.settings.timeout,
            module: Some(&self.builds.baseline.name),
        }
    }

    fn hardware(&self) -> Hardware {
        Hardware {
            memory: self.settings.memory.clone(),
            time: Time::Virtual,
            cpus: 1,
            accel: Accel::Tcg,
        }
    }

    /// The folder of a machine: one that stays, if the kernel's messages are asked for.
    fn machine_folder(&self, name: &str) -> PathBuf {
        let release = &self.builds.kernel.release;
        let logs = self.settings.logs.as_ref();
        logs.map_or_else(
            || self.settings.folder.join(name),
            |logs| logs.join(format!("{release}-{name}")),
        )
    }

    /// Installs a build under a placement, and takes the snapshot that its runs begin from.
    fn install(&self, side: Side, placement: u32) -> Result<Installed, Failure> {
        let build = self.build(side);
        let name = format!("{side}-{placement}");
        let folder = self.settings.folder.join(format!("installed-{name}"));
        let unwritable = |error: io::Error| Failure::cannot_write(&folder, &error);
        fs::create_dir_all(&folder).map_err(unwritable)?;
        let files = Files::of(&[build], &self.builds.kernel)?;
        let packed = folder.join("files");
        files.write(&packed).map_err(unwritable)?;
        let jobs =
            [wire::Job::Install(Install { placement, modules: files.modules_of(&build.name) })];
        let machine_folder = self.machine_folder(&format!("install-{name}"));
        let (hardware, state) = (self.hardware(), self.base.state());
        let spec =
            Spec { files: Some(&packed), ..self.spec(&state, &machine_folder, &hardware, &jobs) };
        let at = format!("{}, placement {placement}", build.given.display());
        let saved = folder.join("state");
        let (answer, text, ()) = self.run_job(&at, spec, |machine| machine.save(&saved))?;
        let Answer::Installed(module) = answer else { return Err(out_of_turn(&at)) };
        let text = String::from_utf8_lossy(&text).into_owned();
        let symbols = Symbols::parse(&text);
        self.check_build(&at, side, &module)?;
        Ok(Installed { side, placement, folder, module: *module, symbols, text })
    }

    /// Refuses source lines of another build than the one that is installed.
    fn check_build(&self, at: &str, side: Side, module: &ModuleFacts) -> Result<(), Failure> {
        let lines = self.lines(side);
        match (&module.build_id, lines.build_id()) {
            (Some(ran), Some(read)) if ran != read => {
                let text = format!(
                    "{at}: the module that ran has build id {ran}, and the file that its source lines are in {read}: it \
                     was replaced meanwhile; measure again"
                );
                Err(Failure::new(exit::LAB_FAILED, text))
            }
            _ => Ok(()),
        }
    }

    fn lines(&self, side: Side) -> std::sync::MutexGuard<'_, Lines> {
        let (baseline, candidate) = &self.lines;
        let of_side = match (side, candidate) {
            (Side::Candidate, Some(lines)) => lines,
            _ => baseline,
        };
        of_side.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores a guest and counts a load there; `wanted` goes before the kernel's symbols.
    fn count(
        &self,
        (at, name): (&str, &str),
        state: &Path,
        spec: &RunSpec,
        wanted: &str,
    ) -> Result<Counted, Failure> {
        let folder = self.machine_folder(&format!("run-{name}"));
        let unwritable = |error: io::Error| Failure::cannot_write(&folder, &error);
        fs::create_dir_all(&folder).map_err(unwritable)?;
        let [symbols, file] = ["symbols", "counts"].map(|name| folder.join(name));
        fs::write(&symbols, [wanted, &self.symbols].concat()).map_err(unwritable)?;
        // The same text for all builds: reading it takes instructions.
        let jobs = [wire::Job::Count(RunSpec { handlers: Vec::new(), ..spec.clone() })];
        let hardware = self.hardware();
        let plugin = Some(self.plugin.argument(&symbols, &file));
        let spec = Spec { plugin, ..self.spec(state, &folder, &hardware, &jobs) };
        let (answer, _, ()) = self.run_job(at, spec, |_| Ok(()))?;
        let Answer::Counted(loads) = answer else { return Err(out_of_turn(at)) };
        let failed = |what: String| Failure::new(exit::LAB_FAILED, format!("{at}: {what}"));
        if let Ok(why) = fs::read_to_string(file.with_extension("error")) {
            return Err(failed(format!("the plugin in QEMU could not count: {why}")));
        }
        let text = fs::read_to_string(&file).map_err(|error| {
            failed(format!("the plugin in QEMU has written no counts ({error}): is the disk full?"))
        })?;
        let checksum = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        let counts = counts::parse(&text).map_err(|why| {
            failed(format!("the counts of QEMU's plugin are damaged: {why}; measure again"))
        })?;
        // A hundred of them take a gigabyte.
        let _ = fs::remove_file(&symbols).and_then(|()| fs::remove_file(&file));
        Ok(Counted { loads, counts, checksum })
    }

    /// One run of a build.
    fn run(
        &self,
        installed: &Installed,
        job: &Job,
        without: Option<&f64>,
    ) -> Result<Recording, Failure> {
        let Installed { side, placement, module, .. } = installed;
        let build = self.build(*side);
        let load = record::load_name(&job.run);
        let at = format!("{}, placement {placement}, {load}", build.given.display());
        let bad = |why: String| Failure::new(exit::NO_TARGET, format!("{at}: {why}"));
        let mut handlers = installed
            .symbols
            .handlers(&build.name, &self.symbols, &job.run.handlers)
            .map_err(bad)?;
        let mut wanted = record::module_line(&build.name, &installed.text);
        for handler in handlers.iter().filter(|handler| handler.module.is_none()) {
            wanted.push_str(&format!("function {}\n", handler.name));
        }
        wanted.push_str(&record::functions_of_modules(&installed.text));
        let state = installed.folder.join("state");
        let name = format!("{side}-{placement}-{load}");
        let count = || self.count((&at, &name), &state, &job.run, &wanted);
        let counted = count()?;
        if self.settings.verify && count()?.checksum != counted.checksum {
            let text = format!(
                "{at}: two runs from one snapshot counted differently: please report it, with the output of \
                 `profiler doctor`"
            );
            return Err(Failure::new(exit::LAB_FAILED, text));
        }
        record::add_unnamed(&mut handlers, &counted.counts, &build.name, &job.run.handlers);
        if let Some(wanted) = &job.wanted {
            handlers.retain(|handler| wanted.contains(record::plain(&handler.name)));
        }
        let damaged = |why: String| {
            Failure::new(exit::LAB_FAILED, format!("{at}: the counts are damaged: {why}"))
        };
        let mut recording = record::recording(&self.base.facts.host, module, counted.loads);
        recording.modules.iter_mut().for_each(|it| it.given = Some(build.params.clone()));
        recording.place = Some(SeriesPosition {
            boot: *placement,
            order: u32::from(*side == Side::Candidate),
            part: job.part.clone(),
        });
        recording.snapshot = Some(Snapshot {
            base: self.base.facts.key.clone(),
            placement: *placement,
            counts_sha256: counted.checksum,
        });
        if let Some(without) = without {
            let (operations, with) =
                exact::operation(&counted.counts, &job.run).map_err(damaged)?;
            recording.driver_costs = cost(&job.run, operations, *without, with);
        }
        let lines = self.lines(*side);
        exact::fill(&mut recording, &counted.counts, handlers, &lines, &installed.symbols)
            .map_err(damaged)?;
        Ok(recording)
    }

    /// Instructions of an operation without the driver, by job; kept with the base snapshot.
    fn without(&self, jobs: &[Job]) -> Result<HashMap<usize, f64>, Failure> {
        let wanted: Vec<usize> = (0..jobs.len()).filter(|job| jobs[*job].cost).collect();
        let (found, failure) = parallel(&wanted, self.settings.jobs, |job| {
            let run = &jobs[*job].run;
            let spec = RunSpec { handlers: Vec::new(), ..run.clone() };
            let text = serde_json::to_string(&spec).unwrap_or_default();
            let hash: String =
                Sha256::digest(&text).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            let kept = self.base.file(&format!("without-{hash}"));
            let known = fs::read_to_string(&kept).ok().and_then(|text| text.trim().parse().ok());
            if let Some(known) = known {
                return Ok((*job, known));
            }
            let load = record::load_name(run);
            let at = format!("without the driver, {load}");
            let name = format!("without-{load}");
            let counted = self.count((&at, &name), &self.base.state(), run, "")?;
            let (_, instructions) = exact::operation(&counted.counts, run)
                .map_err(|why| Failure::new(exit::LAB_FAILED, format!("{at}: {why}")))?;
            // Without a place for it the next gate counts it again.
            let text = instructions.to_string();
            let _ = OutputFile::open(&kept).and_then(|file| file.commit(text.as_bytes()));
            Ok((*job, instructions))
        });
        match failure {
            Some(failure) => Err(failure),
            None => Ok(found.into_iter().collect()),
        }
    }
}

/// Snapshots of builds that exist at a time: each takes about 70 MB.
const CHUNK: usize = 6;

fn out_of_turn(at: &str) -> Failure {
    let text =
        format!("{at}: the guest answered another question: this is a fault of the profiler");
    Failure::new(exit::INTERNAL, text)
}

fn cost(run: &RunSpec, operations: u64, without_ns: f64, with_ns: f64) -> Vec<DriverCost> {
    let of = |load: &crate::load::BuiltinKind| DriverCost {
        load: *load,
        operations,
        meter: Meter::Exact,
        without_ns,
        with_ns,
    };
    run.loads.iter().map(of).collect()
}
