//! Exact runs: each build is installed under each placement from one base snapshot, and each run is restored from there.
//!
//! No run depends on another, so any number goes on side by side, and each repeats to the bit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use sha2::{Digest as _, Sha256};

use super::agent::Agent;
use super::counts::{self, Counts};
use super::files;
use super::lines::Lines;
use super::machine::{Machine, MachineError, Spec, Start};
use super::plan::{CountedHandler, Job, RunSpec};
use super::plugin;
use super::pool::parallel;
use super::snapshots::{self, Base};
use super::subject::Build;
use super::symbols::Symbols;
use super::wire::{self, Answer, BPF_LINES, Install};
use super::{KernelBuilds, Measured, Settings, exact, record};
use crate::atomic_file::OutputFile;
use crate::error::{Failure, exit};
use crate::kernel::hooks::{Hooks, Reader};
use crate::kernel::module::ModuleFacts;
use crate::load::{LoadRun, LoadStatus};
use crate::recording::{Recording, SeriesPosition, Snapshot};
use crate::verdict::Side;

/// What the runs of one kernel need.
pub(super) struct Lab<'a> {
    builds: &'a KernelBuilds,
    settings: &'a Settings,
    base: Base,
    /// Those of sides whose kernel boots with arguments of its own.
    own_bases: [Option<Base>; 2],
    /// What reads hooks, or why they cannot be read.
    reader: Result<Reader, String>,
    /// The file of QEMU's plugin.
    plugin: PathBuf,
    /// Source lines of each build, which take long to read.
    lines: Vec<Mutex<Lines>>,
    /// Agents of each side that have started, in placement 0.
    started: [Mutex<Option<Installed>>; 2],
}

/// A build that is installed in a guest.
#[derive(Clone)]
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
        let beside = settings.options.agent.as_ref().and_then(Agent::kernel_arguments);
        if let Some(arguments) = beside {
            let text = format!("`kernel: {arguments}` is measured alone, and not beside a driver");
            return Err(Failure::new(exit::USAGE, text));
        }
        snapshots::prepare(folder)?;
        let plugin = folder.join("profiler-qemu.so");
        fs::write(&plugin, plugin::PLUGIN).map_err(Failure::cannot_write(folder))?;
        let base = snapshots::base(&builds.kernel, settings, "", say)?;
        let mut own_bases = [None, None];
        for (own, build) in own_bases.iter_mut().zip(builds.builds()) {
            let arguments = build.subject.command().and_then(Agent::kernel_arguments);
            let arguments = arguments.map(|it| snapshots::base(&builds.kernel, settings, it, say));
            *own = arguments.transpose()?;
        }
        let reader = base.reader();
        let lines = builds.builds().map(|build| {
            let lines = build.subject.module().map_or(Ok(Lines::default()), Lines::read);
            lines.map(Mutex::new).map_err(|why| {
                let text = format!("cannot read {}: {why}", build.given);
                Failure::new(exit::BAD_INPUT, text)
            })
        });
        let started = Default::default();
        Ok(Self {
            builds,
            settings,
            base,
            own_bases,
            reader,
            plugin,
            lines: lines.collect::<Result<_, _>>()?,
            started,
        })
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
        let without = match self.without(jobs, &mut measured.failed) {
            Ok(without) => without,
            Err(failure) => return Measured { failure: Some(failure), ..measured },
        };
        let pairs: Vec<(Side, u32)> =
            placements.flat_map(|number| sides.iter().map(move |side| (*side, number))).collect();
        for pairs in pairs.chunks(CHUNK) {
            let installed: Vec<OnceLock<Option<Installed>>> =
                pairs.iter().map(|_| OnceLock::new()).collect();
            let called: Vec<Called> = pairs.iter().map(|_| Called::new(jobs)).collect();
            let (done, failure) = parallel(
                &steps(pairs.len(), jobs),
                self.settings.options.jobs(),
                |step| match *step {
                    Step::Install(at) => {
                        let (side, number) = pairs[at];
                        let (done, result) = match self.install(side, number) {
                            Ok(done) => (Some(done), Ok(None)),
                            Err(failure) => (None, Err(failure)),
                        };
                        // Else its runs would wait.
                        let _ = installed[at].set(done);
                        result
                    }
                    Step::Run(at, group) => {
                        group.iter().for_each(|_| on_run());
                        let is_second = pairs[at].0 == Side::Candidate && sides.len() == 2;
                        let before = is_second.then(|| &called[at - 1]);
                        let of = installed[at].wait().as_ref();
                        let of = of.filter(|_| before.is_none_or(|before| before.allows(group)));
                        let runs = of.map(|of| self.run(of, group, &without)).transpose();
                        called[at].set(group, runs.as_ref().ok().and_then(Option::as_ref));
                        Ok(of.map(|of| of.side).zip(runs?))
                    }
                },
            );
            for (side, recordings) in done.into_iter().flatten() {
                for recording in recordings {
                    match recording {
                        Ok(recording) => measured.of_side(side).push(recording),
                        // One placement stands for all.
                        Err((load, failed)) => drop(measured.failed.entry(load).or_insert(failed)),
                    }
                }
            }
            measured.failure = failure;
            for installed in installed.iter().flat_map(OnceLock::get).flatten() {
                // Else they go with the folder of all, as agents do that further placements begin from.
                if installed.placement > 0 || !self.is_agent(installed.side) {
                    let _ = fs::remove_dir_all(&installed.folder);
                }
            }
            if measured.failure.is_some() {
                break;
            }
        }
        measured
    }

    fn build(&self, side: Side) -> &Build {
        self.builds.builds().nth(side as usize).unwrap_or(&self.builds.baseline)
    }

    /// A machine from a snapshot that has done its job, its answer, and what is attached.
    fn answer(spec: Spec<'_>) -> Result<(Machine, Answer, Vec<u8>), MachineError> {
        let mut machine = Machine::start(spec)?;
        let (answer, attachment) = machine.next_answer()?;
        Ok((machine, answer, attachment))
    }

    fn spec<'b>(&'b self, snapshot: &'b Path, folder: &'b Path, jobs: &'b [wire::Job]) -> Spec<'b> {
        let options = &self.settings.options;
        let (kernel, start) = (&self.builds.kernel, Start::Restore(snapshot));
        Spec { jobs, ..Spec::counted(kernel, &options.memory, start, folder, options.timeout) }
    }

    /// The folder of a machine: one that stays, if the kernel's messages are asked for.
    fn machine_folder(&self, name: &str) -> PathBuf {
        let release = &self.builds.kernel.release;
        match &self.settings.options.logs {
            Some(logs) => logs.join(format!("{release}-{name}")),
            None => self.settings.folder.join(name),
        }
    }

    fn is_agent(&self, side: Side) -> bool {
        self.build(side).subject.command().is_some()
    }

    /// Installs a build under a placement, and takes the snapshot that its runs begin from.
    fn install(&self, side: Side, placement: u32) -> Result<Installed, Failure> {
        if !self.is_agent(side) {
            return self.install_anew(side, placement);
        }
        // One starts for a long time: libbpf and the verifier take 20 s of a CPU for Falco's 182 programs.
        let started = {
            let mut kept =
                self.started[side as usize].lock().unwrap_or_else(PoisonError::into_inner);
            match &*kept {
                Some(started) => started.clone(),
                None => kept.insert(self.install_anew(side, 0)?).clone(),
            }
        };
        if placement == 0 { Ok(started) } else { self.place(started, placement) }
    }

    fn base_of(&self, side: Side) -> &Base {
        self.own_bases[side as usize].as_ref().unwrap_or(&self.base)
    }

    fn at(&self, side: Side, placement: u32) -> String {
        format!("{}, placement {placement}", self.build(side).given)
    }

    /// Restores a guest that does one job, and takes the snapshot of a placement's build; `look` sees the guest before that, with what
    /// is attached to its answer.
    fn saved<T>(
        &self,
        (side, placement): (Side, u32),
        from: &Path,
        (job, files): (wire::Job, &[u8]),
        look: impl FnOnce(&mut Machine, &[u8]) -> T,
    ) -> Result<(PathBuf, Answer, T), Failure> {
        let name = format!("{side}-{placement}");
        let folder = self.settings.folder.join(format!("installed-{name}"));
        fs::create_dir_all(&folder).map_err(Failure::cannot_write(&folder))?;
        let (machine_folder, jobs) = (self.machine_folder(&format!("install-{name}")), [job]);
        let spec = self.spec(from, &machine_folder, &jobs);
        let spec = Spec { files, saved_to: Some(&folder), ..spec };
        let answered = Self::answer(spec).and_then(|(mut machine, answer, attached)| {
            let seen = look(&mut machine, &attached);
            machine.save(&folder)?;
            Ok((answer, seen))
        });
        let (answer, seen) = answered.map_err(|error| {
            let at = self.at(side, placement);
            error.into_failure(&at, Some(&self.builds.baseline.name), &machine_folder)
        })?;
        Ok((folder, answer, seen))
    }

    /// An agent that has started under another placement.
    fn place(&self, started: Installed, placement: u32) -> Result<Installed, Failure> {
        let of = (started.side, placement);
        let job = (wire::Job::Place(placement), &[][..]);
        match self.saved(of, &started.folder, job, |_, _| ())? {
            (folder, Answer::Placed, ()) => Ok(Installed { placement, folder, ..started }),
            _ => Err(out_of_turn(&self.at(started.side, placement))),
        }
    }

    /// Installs a build under a placement in a guest that has no other.
    fn install_anew(&self, side: Side, placement: u32) -> Result<Installed, Failure> {
        let (build, at) = (self.build(side), self.at(side, placement));
        let mut files = Vec::new();
        let modules = files::pack([build], &self.builds.kernel, &mut files)?;
        let agent = self.settings.options.agent.as_ref().or(build.subject.command());
        let agent = agent.map(|agent| agent.pack(&mut files));
        let job = wire::Job::Install(Install { placement, modules, agent });
        let (of, from) = ((side, placement), &self.base_of(side).folder);
        let saved = self.saved(of, from, (job, &files), |machine, attached| {
            let text = String::from_utf8_lossy(attached);
            let (text, lines) = text.split_once(BPF_LINES).unwrap_or((&text, ""));
            (self.hooks(machine, &build.name, text), text.to_owned(), lines.to_owned())
        });
        let (folder, answer, (mut hooks, text, lines)) = saved?;
        let Answer::Installed(mut module) = answer else { return Err(out_of_turn(&at)) };
        let mut symbols = Symbols::parse(&text);
        symbols.set_bpf_lines(&lines).map_err(|why| {
            let text = format!("{at}: the source lines of BPF programs are damaged: {why}");
            Failure::new(exit::LAB_FAILED, text)
        })?;
        // Of audit rules the guest has read them itself.
        if let Some(own) = module.hooks.take() {
            hooks = own;
        }
        if let Some(agent) = build.subject.command() {
            module.build_id = Some(agent.id());
            module.command = Some(agent.command.clone());
            hooks.unknown.extend(symbols.not_attached(&hooks));
        }
        module.hooks = Some(hooks);
        Ok(Installed { side, placement, folder, module: *module, symbols, text })
    }

    /// What a build has registered in a guest that has just loaded it; `text` has the symbols of modules.
    fn hooks(&self, machine: &mut Machine, module: &str, text: &str) -> Hooks {
        let Base { symbols, data, .. } = &self.base;
        match &self.reader {
            Ok(reader) => machine.hooks(reader, module, [symbols, data], text),
            Err(why) => Hooks { list: Vec::new(), unknown: vec![why.clone()] },
        }
    }

    /// What the only build registers.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub(super) fn registered(&self) -> Result<Hooks, Failure> {
        let installed = self.install(Side::Baseline, 0)?;
        Ok(installed.module.hooks.unwrap_or_default())
    }

    fn lines(&self, side: Side) -> std::sync::MutexGuard<'_, Lines> {
        self.lines[side as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores a guest and counts loads there, one after the other; `wanted` goes before the kernel's symbols. `build` and what ran
    /// are named in errors.
    fn count(
        &self,
        (build, name): (&str, &str),
        snapshot: &Path,
        group: &[Job],
        wanted: &str,
    ) -> Result<Vec<Counted>, Failure> {
        let folder = self.machine_folder(&format!("run-{name}"));
        fs::create_dir_all(&folder).map_err(Failure::cannot_write(&folder))?;
        let [symbols, file] = ["symbols", "counts"].map(|name| folder.join(name));
        fs::write(&symbols, [wanted, &self.base.symbols].concat())
            .map_err(Failure::cannot_write(&folder))?;
        let mut files = Vec::new();
        let program = self.program(group).map(|program| program.pack(&mut files));
        let runs = group.iter().filter(|job| !job.left_out).count();
        let jobs = [wire::Job::Count(specs(group), program, wire::TwoDigits::new(runs))];
        let plugin = Some(plugin::argument(&self.plugin, &symbols, &file));
        let spec = self.spec(snapshot, &folder, &jobs);
        let spec = Spec { plugin, files: &files, ..spec };
        let at = &format!("{build}, {}", group_name(group));
        let answered = Self::answer(spec).map(|(_, answer, _)| answer).map_err(|error| {
            let here = format!("{build}, {}", running(group, &file));
            error.into_failure(&here, Some(&self.builds.baseline.name), &folder)
        });
        let Answer::Counted(loads) = answered? else { return Err(out_of_turn(at)) };
        let counted = counted(loads, &file)
            .map_err(|what| Failure::new(exit::LAB_FAILED, format!("{at}: {what}")))?;
        let _ = fs::remove_file(&symbols);
        if counted.len() == runs { Ok(counted) } else { Err(out_of_turn(at)) }
    }

    /// What the operations of a group are runs of.
    fn program(&self, group: &[Job]) -> Option<&Agent> {
        self.settings.program.as_ref().filter(|_| group.iter().any(|job| job.program))
    }

    /// A name for what a group's runs without the driver depend on.
    fn key(&self, group: &[Job]) -> String {
        let program = self.program(group).map(Agent::id).unwrap_or_default();
        let text = serde_json::to_string(&specs(group)).unwrap_or_default() + &program;
        Sha256::digest(&text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// One run of a build for each job, all from one restore; a failure of those whose load failed.
    fn run(
        &self,
        installed: &Installed,
        group: &[Job],
        without: &HashMap<String, Vec<Option<f64>>>,
    ) -> Result<Vec<Result<Recording, FailedLoad>>, Failure> {
        let Installed { side, placement, .. } = installed;
        let build = self.build(*side);
        let loads = group_name(group);
        let of_build = self.at(*side, *placement);
        let at = format!("{of_build}, {loads}");
        let patterns = group.first().map_or(&[][..], |job| &job.run.handlers);
        let handlers = installed.symbols.handlers(&build.name, &self.base.symbols, patterns);
        let handlers =
            handlers.map_err(|why| Failure::new(exit::NO_TARGET, format!("{at}: {why}")))?;
        let mut wanted = record::module_line(&build.name, &installed.text);
        for handler in handlers.iter().filter(|handler| handler.module.is_none()) {
            wanted.push_str(&format!("function {}\n", handler.name));
        }
        wanted.push_str(&record::functions_of_modules(&installed.text));
        let name = format!("{side}-{placement}-{loads}");
        let (of, from) = ((&*of_build, &*name), &*installed.folder);
        let counted = self.count(of, from, group, &wanted)?;
        let checksums = counted.iter().map(|run| &run.checksum);
        if self.settings.options.verify
            && !self.count(of, from, group, &wanted)?.iter().map(|it| &it.checksum).eq(checksums)
        {
            let text = format!(
                "{at}: two runs from one snapshot counted differently: please report it, with the output of \
                 `profiler doctor`"
            );
            return Err(Failure::new(exit::LAB_FAILED, text));
        }
        let mut without = without.get(&self.key(group)).into_iter().flatten().copied();
        let recordings = group.iter().zip(counted).map(|(job, counted)| {
            let without = if job.cost { without.next().flatten() } else { None };
            match failure_of(&build.given, &of_build, job, &counted.loads) {
                Some(failed) => Ok(Err(failed)),
                None => self.recording(installed, job, counted, handlers.clone(), without).map(Ok),
            }
        });
        recordings.collect()
    }

    /// The recording of what was counted in a run; `handlers` were asked for.
    fn recording(
        &self,
        installed: &Installed,
        job: &Job,
        counted: Counted,
        mut handlers: Vec<CountedHandler>,
        without: Option<f64>,
    ) -> Result<Recording, Failure> {
        let Installed { side, placement, module, .. } = installed;
        let build = self.build(*side);
        record::add_unnamed(&mut handlers, &counted.counts, &build.name, &job.run.handlers);
        if let Some(wanted) = &job.wanted {
            record::keep_wanted(&mut handlers, wanted, module);
        }
        let mut recording = record::recording(&self.base.host, module, counted.loads);
        let params = build.subject.module().map(|_| build.params.clone());
        recording.modules.iter_mut().for_each(|it| it.given.clone_from(&params));
        recording.place = Some(SeriesPosition {
            boot: *placement,
            order: u32::from(*side == Side::Candidate),
            part: job.part.clone(),
        });
        recording.snapshot = Some(Snapshot {
            base: self.base_of(*side).key.clone(),
            placement: *placement,
            counts_sha256: counted.checksum,
            agent: self.settings.options.agent.as_ref().map(Agent::words),
        });
        let (counts, symbols) = (&counted.counts, &installed.symbols);
        let costs = without.map(|without| exact::costs(counts, &job.run, without)).transpose();
        let filled = costs.and_then(|costs| {
            recording.driver_costs.extend(costs.into_iter().flatten());
            exact::fill(&mut recording, counts, handlers, &self.lines(*side), symbols)
        });
        filled.map_err(|why| {
            let (file, load) = (&build.given, record::load_name(&job.run));
            let text =
                format!("{file}, placement {placement}, {load}: the counts are damaged: {why}");
            Failure::new(exit::LAB_FAILED, text)
        })?;
        Ok(recording)
    }

    /// Instructions of an operation without the driver, of each job whose cost is wanted, by group; kept with the base snapshot.
    /// None of those whose load `failed`.
    fn without(
        &self,
        jobs: &[Job],
        failed: &mut BTreeMap<String, Failure>,
    ) -> Result<HashMap<String, Vec<Option<f64>>>, Failure> {
        let wanted: Vec<&[Job]> =
            groups(jobs).filter(|group| group.iter().any(|job| job.cost)).collect();
        let (found, failure) = parallel(&wanted, self.settings.options.jobs(), |group| {
            let key = self.key(group);
            let kept = self.base.folder.join(format!("without-{key}"));
            let known = fs::read(&kept).ok().and_then(|text| serde_json::from_slice(&text).ok());
            if let Some(known) = known {
                return Ok((key, known, Vec::new()));
            }
            let loads = group_name(group);
            let at = "without the driver";
            let name = format!("without-{loads}");
            // Kept for all of them.
            let group: Vec<Job> =
                group.iter().map(|job| Job { left_out: false, ..job.clone() }).collect();
            let counted = self.count((at, &name), &self.base.folder, &group, "")?;
            let mut failed: Vec<FailedLoad> = Vec::new();
            let runs = group.iter().zip(&counted).filter(|(job, _)| job.cost);
            let each = runs.map(|(job, counted)| match failure_of(at, at, job, &counted.loads) {
                Some(load) => {
                    failed.push(load);
                    Ok(None)
                }
                None => exact::operation(&counted.counts, &job.run).map(|(_, it)| Some(it)),
            });
            let each: Vec<Option<f64>> = each
                .collect::<Result<_, _>>()
                .map_err(|why| Failure::new(exit::LAB_FAILED, format!("{at}, {loads}: {why}")))?;
            // Without a place for it the next gate counts it again, and where a load failed, says so again.
            if failed.is_empty() {
                let text = serde_json::to_vec(&each).unwrap_or_default();
                let _ = OutputFile::open(&kept).and_then(|file| file.commit(&text));
            }
            Ok((key, each, failed))
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        let mut by_group = HashMap::new();
        for (key, each, more) in found {
            failed.extend(more);
            by_group.insert(key, each);
        }
        Ok(by_group)
    }
}

/// A build and a load that could not do what was asked, and why.
type FailedLoad = (String, Failure);

/// By guest, whether a build's runs there called [what has to be called](Job::only_if_called).
struct Called(HashMap<u32, OnceLock<bool>>);

impl Called {
    fn new(jobs: &[Job]) -> Self {
        Self(jobs.iter().map(|job| (job.guest, OnceLock::new())).collect())
    }

    fn of(&self, group: &[Job]) -> Option<&OnceLock<bool>> {
        self.0.get(&group.first()?.guest)
    }

    /// Keeps what the runs of a group say; none, as a guest failed, says nothing.
    fn set(&self, group: &[Job], runs: Option<&Vec<Result<Recording, FailedLoad>>>) {
        let is_called = runs.is_none_or(|runs| {
            let mut runs = group.iter().zip(runs);
            runs.any(|(job, run)| run.as_ref().map_or(true, |run| job.is_called_in(run)))
        });
        // Else the other build's runs would wait.
        self.of(group).map(|kept| kept.set(is_called));
    }

    /// Whether the other build is run, too; waits for what that depends on.
    fn allows(&self, group: &[Job]) -> bool {
        let mut jobs = group.iter();
        !jobs.any(|job| job.only_if_called.is_some())
            || self.of(group).is_none_or(|kept| *kept.wait())
    }
}

/// That of a job on a build, if a load of it failed; `at` is where it did.
fn failure_of(build: &str, at: &str, job: &Job, loads: &[LoadRun]) -> Option<FailedLoad> {
    let name = record::load_name(&job.run);
    loads.iter().find_map(|load| match &load.outcome.status {
        LoadStatus::Failed(why) => {
            let failure = Failure::new(exit::LOAD_FAILED, format!("{at}, {name}: {why}"));
            Some((format!("{build}, {name}"), failure))
        }
        _ => None,
    })
}

/// The jobs that share a restore.
fn groups(jobs: &[Job]) -> impl Iterator<Item = &[Job]> {
    jobs.chunk_by(|one, next| one.guest == next.guest)
}

/// What a machine is started for.
enum Step<'a> {
    Install(usize),
    /// Jobs on the build that was installed so.
    Run(usize, &'a [Job]),
}

/// All steps for so many builds, in an order in which no CPU waits: each is installed before the runs of the one before it begin, and
/// the longest run, of the jobs that share a guest, comes before the others.
fn steps(builds: usize, jobs: &[Job]) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = (0..builds.min(1)).map(Step::Install).collect();
    for at in 0..builds {
        steps.extend((at + 1 < builds).then_some(Step::Install(at + 1)));
        let mut groups: Vec<&[Job]> = groups(jobs).collect();
        groups.sort_by_key(|group| Reverse(group.len()));
        steps.extend(groups.into_iter().map(|group| Step::Run(at, group)));
    }
    steps
}

/// A name for a group by its loads, which no other group has.
fn group_name(group: &[Job]) -> String {
    match group {
        [] => String::new(),
        [job] => job_name(job),
        [job, more @ ..] => format!("{}+{}", job_name(job), more.len()),
    }
}

fn job_name(job: &Job) -> String {
    if job.program {
        return "program".to_owned();
    }
    let (load, dimensions) = (record::load_name(&job.run), job.run.dimensions.to_string());
    // In options of QEMU a comma ends a path.
    let sizes = dimensions.replace([',', '='], "-");
    [load, sizes].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

/// The file in which QEMU's plugin writes the counts of the n-th load of a guest.
fn counts_of(first: &Path, number: usize) -> PathBuf {
    if number == 1 { first.to_owned() } else { first.with_extension(number.to_string()) }
}

/// What the plugin has written of the `loads` of a guest, in files of which this is the `first`.
///
/// # Errors
/// Why there is nothing or no more, in words.
fn counted(loads: Vec<Vec<LoadRun>>, first: &Path) -> Result<Vec<Counted>, String> {
    if let Ok(why) = fs::read_to_string(first.with_extension("error")) {
        return Err(format!("the plugin in QEMU could not count: {why}"));
    }
    let counted = (1..).zip(loads).map(|(number, loads)| {
        let file = counts_of(first, number);
        let text = counts::read(&file).map_err(|error| {
            format!("the plugin in QEMU has written no counts ({error}): is the disk full?")
        })?;
        let checksum = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        let counts = counts::parse(&text).map_err(|why| {
            format!("the counts of QEMU's plugin are damaged: {why}; measure again")
        })?;
        // A hundred of them take a gigabyte.
        let _ = fs::remove_file(&file);
        Ok(Counted { loads, counts, checksum })
    });
    counted.collect()
}

/// The load of a group that was running when its guest failed: those before it have counts. All, if each has.
fn running(group: &[Job], counts: &Path) -> String {
    let mut loads = (1..).zip(group.iter().filter(|job| !job.left_out));
    let stopped = loads.find(|(number, _)| !counts_of(counts, *number).exists());
    stopped.map_or_else(|| group_name(group), |(_, job)| job_name(job))
}

/// What a guest does for a group: the same text for all builds, as reading it takes instructions.
fn specs(group: &[Job]) -> Vec<RunSpec> {
    group.iter().map(|job| RunSpec { handlers: Vec::new(), ..job.run.clone() }).collect()
}

/// Snapshots of builds that exist at a time: each takes about 90 MB.
const CHUNK: usize = 6;

fn out_of_turn(at: &str) -> Failure {
    let text =
        format!("{at}: the guest answered another question: this is a fault of the profiler");
    Failure::new(exit::INTERNAL, text)
}
