//! Exact runs: each build is installed under each placement from one base snapshot, and each run is restored from there.
//!
//! No run depends on another, so any number goes on side by side, and each repeats to the bit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::iter::repeat;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use sha2::{Digest as _, Sha256};

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, exit};
use profiler_kernel::hooks::{Hooks, Reader};
use profiler_kernel::module::ModuleFacts;
use profiler_load::{LoadRun, LoadStatus};
use profiler_recording::{Recording, SeriesPosition, Snapshot};
use profiler_verdict::Side;

use super::agent::Agent;
use super::bpf_lines::BpfLines;
use super::counts::{self, Counts};
use super::files;
use super::lines::Lines;
use super::machine::{Machine, MachineError, Spec, Start, value};
use super::plan::{CountedHandler, Job, RunSpec};
use super::pool::parallel;
use super::snapshots::{self, Base};
use super::subject::Build;
use super::symbols::Symbols;
use super::wire::{self, Answer, BPF_LINES, Install};
use super::{KernelBuilds, Measured, Options, exact};

/// The plugin that QEMU loads (`profiler-qemu`), a shared library; `build.rs` compiles it. It is a file on the host, of which a guest
/// sees nothing.
const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/profiler-qemu.so"));

/// What the runs of one kernel need.
pub(super) struct Lab<'a> {
    builds: &'a KernelBuilds,
    options: &'a Options,
    base: Base,
    /// By side.
    of_builds: Vec<OfBuild<'a>>,
    /// What reads hooks, or why they cannot be read.
    reader: Result<Reader, String>,
    /// The file of QEMU's plugin.
    plugin: PathBuf,
}

/// What the runs of one build need.
struct OfBuild<'a> {
    build: &'a Build,
    /// Where its kernel boots with arguments of its own.
    base: Option<Base>,
    /// Its source lines, which take long to read.
    lines: Mutex<Lines>,
    /// The agent that has started, in placement 0.
    started: OnceLock<Result<Installed, Failure>>,
}

/// What is counted of a build under a placement.
pub(super) struct Task<'a> {
    side: Side,
    placement: u32,
    /// The jobs that share a guest, the most first.
    pub(super) guests: Vec<&'a [Job]>,
    /// The build there, once a machine has it.
    installed: OnceLock<Result<Installed, Failure>>,
}

/// The guests of both builds that are `wanted`, under each placement.
pub(super) fn tasks(
    placements: Range<u32>,
    jobs: &[Job],
    wanted: impl Fn(Side, u32, &[Job]) -> bool,
) -> Vec<Task<'_>> {
    let mut tasks = Vec::new();
    for placement in placements {
        for side in [Side::Baseline, Side::Candidate] {
            let mut guests: Vec<&[Job]> =
                groups(jobs).filter(|guest| wanted(side, placement, guest)).collect();
            guests.sort_by_key(|guest| Reverse(guest.len()));
            tasks.push(Task { side, placement, guests, installed: OnceLock::new() });
        }
    }
    tasks.retain(|task| !task.guests.is_empty());
    tasks
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
        options: &'a Options,
        say: &dyn Fn(&str),
    ) -> Result<Self, Failure> {
        let folder = &builds.folder;
        let beside = options.agent.as_ref().and_then(Agent::kernel_arguments);
        if let Some(arguments) = beside {
            let text = format!("`kernel: {arguments}` is measured alone, and not beside a driver");
            return Err(Failure::new(exit::USAGE, text));
        }
        snapshots::prepare(folder)?;
        let plugin = folder.join("profiler-qemu.so");
        fs::write(&plugin, PLUGIN).map_err(Failure::cannot_write(folder))?;
        let base = snapshots::base(builds, options, "", say)?;
        let reader = base.reader();
        let mut of_builds = Vec::new();
        for build in &builds.builds {
            let arguments = build.subject.command().and_then(Agent::kernel_arguments);
            let base = arguments.map(|it| snapshots::base(builds, options, it, say));
            let base = base.transpose()?;
            let lines = build.subject.module().map_or(Ok(Lines::default()), Lines::read);
            let lines = lines.map(Mutex::new).map_err(|why| {
                let text = format!("cannot read {}: {why}", build.given);
                Failure::new(exit::BAD_INPUT, text)
            })?;
            of_builds.push(OfBuild { build, base, lines, started: OnceLock::new() });
        }
        Ok(Self { builds, options, base, of_builds, reader, plugin })
    }

    /// Does these tasks; `on_run` is called at the start of each run. What was complete before a failure is kept.
    pub(super) fn measure(&self, tasks: &[Task<'_>], on_run: &(dyn Fn() + Sync)) -> Measured {
        let mut measured = Measured::default();
        let without = match self.without(tasks, &mut measured.failed) {
            Ok(without) => without,
            Err(failure) => return Measured { failure: Some(failure), ..measured },
        };
        for tasks in tasks.chunks(CHUNK) {
            let (done, failure) = parallel(&steps(tasks), self.options.jobs(), |step| match step {
                Step::Install(task) => self.installed(task).map(|_| Vec::new()),
                Step::Run(tasks, guest) => self.in_turn(tasks, guest, &without, on_run),
            });
            for (side, run) in done.into_iter().flatten() {
                match run {
                    Ok(recording) => measured.runs[side as usize].push(recording),
                    // One placement stands for all.
                    Err((load, failed)) => drop(measured.failed.entry(load).or_insert(failed)),
                }
            }
            for build in tasks.iter().filter_map(|task| task.installed.get()).flatten() {
                // Else they go with the folder of all, as agents do that further placements begin from.
                if build.placement > 0 || !self.is_agent(build.side) {
                    let _ = fs::remove_dir_all(&build.folder);
                }
            }
            measured.failure = failure;
            if measured.failure.is_some() {
                break;
            }
        }
        measured
    }

    /// The build of a task, which is installed once.
    fn installed<'t>(&self, task: &'t Task<'_>) -> Result<&'t Installed, Failure> {
        let installed = task.installed.get_or_init(|| self.install(task.side, task.placement));
        installed.as_ref().map_err(Failure::clone)
    }

    /// One run for each job on the builds of each of these tasks; none on the next where [nothing is
    /// called](Job::only_if_called) that differs.
    fn in_turn(
        &self,
        tasks: &[Task<'_>],
        guest: &[Job],
        without: &Without,
        on_run: &(dyn Fn() + Sync),
    ) -> Result<Vec<(Side, Ran)>, Failure> {
        let mut runs: Vec<(Side, Ran)> = Vec::new();
        for task in tasks {
            guest.iter().for_each(|_| on_run());
            let mut before = guest.iter().zip(&runs);
            let is_wanted = runs.is_empty()
                || before
                    .any(|(job, (_, run))| run.as_ref().map_or(true, |it| job.is_called_in(it)));
            // The step that installs it says why there is none.
            if is_wanted && let Ok(installed) = self.installed(task) {
                let more = self.run(installed, guest, without)?;
                runs.extend(more.into_iter().map(|run| (task.side, run)));
            }
        }
        Ok(runs)
    }

    fn of(&self, side: Side) -> &OfBuild<'a> {
        &self.of_builds[side as usize]
    }

    fn spec<'b>(&'b self, snapshot: &'b Path, folder: &'b Path, jobs: &'b [wire::Job]) -> Spec<'b> {
        let options = self.options;
        let (kernel, start) = (&self.builds.kernel, Start::Restore(snapshot));
        Spec { jobs, ..Spec::counted(kernel, &options.memory, start, folder, options.timeout) }
    }

    fn is_agent(&self, side: Side) -> bool {
        self.of(side).build.subject.is_command()
    }

    /// Installs a build under a placement, and takes the snapshot that its runs begin from.
    fn install(&self, side: Side, placement: u32) -> Result<Installed, Failure> {
        if !self.is_agent(side) {
            return self.install_anew(side, placement);
        }
        // One starts for a long time: libbpf and the verifier take 20 s of a CPU for Falco's 182 programs.
        let started = self.of(side).started.get_or_init(|| self.install_anew(side, 0)).clone()?;
        if placement == 0 { Ok(started) } else { self.place(started, placement) }
    }

    fn at(&self, side: Side, placement: u32) -> String {
        format!("{}, placement {placement}", self.of(side).build.given)
    }

    /// Restores a guest that does one job, and takes the snapshot of a placement's build; `look` sees the guest before that.
    fn saved<T>(
        &self,
        (side, placement): (Side, u32),
        from: &Path,
        (job, files): (wire::Job, &[u8]),
        look: impl FnOnce(&mut Machine) -> Result<T, MachineError>,
    ) -> Result<(PathBuf, T), Failure> {
        let name = format!("{side}-{placement}");
        let folder = self.builds.folder.join(format!("installed-{name}"));
        fs::create_dir_all(&folder).map_err(Failure::cannot_write(&folder))?;
        let jobs = [job];
        let machine_folder = self.builds.machine_folder(self.options, &format!("install-{name}"));
        let spec = self.spec(from, &machine_folder, &jobs);
        let spec = Spec { files, saved_to: Some(&folder), ..spec };
        let seen = Machine::start(spec).and_then(|mut machine| {
            let seen = look(&mut machine)?;
            machine.save(&folder)?;
            Ok(seen)
        });
        let seen = seen.map_err(|error| {
            let at = self.at(side, placement);
            error.into_failure(&at, Some(&self.builds.builds[0].name), &machine_folder)
        })?;
        Ok((folder, seen))
    }

    /// An agent that has started under another placement.
    fn place(&self, started: Installed, placement: u32) -> Result<Installed, Failure> {
        let of = (started.side, placement);
        let job = (wire::Job::Place(placement), &[][..]);
        let is_placed = |answer| (answer == Answer::Placed).then_some(());
        let saved = self.saved(of, &started.folder, job, |machine| machine.next_answer(is_placed));
        Ok(Installed { placement, folder: saved?.0, ..started })
    }

    /// Installs a build under a placement in a guest that has no other.
    fn install_anew(&self, side: Side, placement: u32) -> Result<Installed, Failure> {
        let OfBuild { build, base, .. } = self.of(side);
        let mut files = Vec::new();
        let modules = files::pack([*build], &self.builds.kernel, &mut files)?;
        let agent = self.options.agent.as_ref().or(build.subject.command());
        let agent = agent.map(|agent| agent.pack(&mut files));
        let job = wire::Job::Install(Install { placement, modules, agent });
        let (of, from) = ((side, placement), &base.as_ref().unwrap_or(&self.base).folder);
        let saved = self.saved(of, from, (job, &files), |machine| {
            let (module, attached) = machine.next_answer(Answer::try_as_installed)?;
            let text = String::from_utf8_lossy(&attached);
            let (text, lines) = text.split_once(BPF_LINES).unwrap_or((&text, ""));
            let mut symbols = Symbols::parse(text);
            symbols.bpf_lines = BpfLines::parse(lines).map_err(|why| {
                let text = format!("the source lines of BPF programs are damaged: {why}");
                MachineError::Broken(text)
            })?;
            Ok((module, self.hooks(machine, &build.name, text), symbols, text.to_owned()))
        });
        let (folder, (mut module, mut hooks, symbols, text)) = saved?;
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

    /// Restores a guest and counts loads there, one after the other; `wanted` goes before the kernel's symbols. `build` and what ran
    /// are named in errors.
    fn count(
        &self,
        (build, name): (&str, &str),
        snapshot: &Path,
        group: &[Job],
        wanted: &str,
    ) -> Result<Vec<Counted>, Failure> {
        let folder = self.builds.machine_folder(self.options, &format!("run-{name}"));
        fs::create_dir_all(&folder).map_err(Failure::cannot_write(&folder))?;
        let [symbols, file] = ["symbols", "counts"].map(|name| folder.join(name));
        fs::write(&symbols, [wanted, &self.base.symbols].concat())
            .map_err(Failure::cannot_write(&folder))?;
        let mut files = Vec::new();
        let program = program(group).map(|program| program.pack(&mut files));
        let runs = group.iter().filter(|job| !job.left_out).count();
        // Of an earlier guest, where the folder is one that stays.
        let before = (1..=runs).map(|number| counts_of(&file, number));
        for before in before.chain([file.with_extension("error")]) {
            let _ = fs::remove_file(before);
        }
        let jobs = [wire::Job::Count(specs(group), program, wire::THREE_DIGITS + runs)];
        let [plugin, in_options, out] = [&self.plugin, &symbols, &file].map(|path| value(path));
        let plugin = format!("{plugin},instruments=on,symbols={in_options},counts={out}");
        let spec = self.spec(snapshot, &folder, &jobs);
        let spec = Spec { plugin: Some(plugin), files: &files, ..spec };
        let at = &format!("{build}, {}", group_name(group));
        let answered = Machine::start(spec).and_then(|mut machine| {
            let of_all = |loads: &Vec<Vec<LoadRun>>| loads.len() == runs;
            machine.next_answer(|answer| answer.try_as_counted().filter(of_all))
        });
        let (loads, _) = answered.map_err(|error| {
            let here = format!("{build}, {}", running(group, &file));
            error.into_failure(&here, Some(&self.builds.builds[0].name), &folder)
        })?;
        let counted = counted(loads, &file).map_err(|what| lab_failed(at, &what))?;
        let _ = fs::remove_file(&symbols);
        Ok(counted)
    }

    /// One run of a build for each job, all from one restore; a failure of those whose load failed.
    fn run(
        &self,
        installed: &Installed,
        group: &[Job],
        without: &Without,
    ) -> Result<Vec<Ran>, Failure> {
        let Installed { side, placement, .. } = installed;
        let build = self.of(*side).build;
        let loads = group_name(group);
        let of_build = self.at(*side, *placement);
        let at = format!("{of_build}, {loads}");
        let patterns = group.first().map_or(&[][..], |job| &job.run.handlers);
        let handlers = installed.symbols.handlers(&build.name, &self.base.symbols, patterns);
        let handlers =
            handlers.map_err(|why| Failure::new(exit::NO_TARGET, format!("{at}: {why}")))?;
        let mut wanted = exact::module_line(&build.name, &installed.text);
        for handler in handlers.iter().filter(|handler| handler.module.is_none()) {
            wanted.push_str(&format!("function {}\n", handler.name));
        }
        wanted.push_str(&snapshots::functions_of(&installed.text));
        let name = format!("{side}-{placement}-{loads}");
        let (of, from) = ((&*of_build, &*name), &*installed.folder);
        let counted = self.count(of, from, group, &wanted)?;
        let checksums = counted.iter().map(|run| &run.checksum);
        if self.options.verify
            && !self.count(of, from, group, &wanted)?.iter().map(|it| &it.checksum).eq(checksums)
        {
            let why = "two runs from one snapshot counted differently: please report it, with the output of \
                       `profiler doctor`";
            return Err(lab_failed(&at, why));
        }
        let without = without.get(&key(group)).into_iter().flatten().copied();
        let without = without.chain(repeat(None));
        let mut runs = Vec::new();
        for ((job, counted), without) in group.iter().zip(counted).zip(without) {
            if let Some(failed) = failure_of(&build.given, &of_build, job, &counted.loads) {
                runs.push(Err(failed));
                continue;
            }
            let made = self.recording(installed, job, counted, handlers.clone(), without);
            runs.push(Ok(made.map_err(|why| {
                let at = format!("{of_build}, {}", exact::load_name(&job.run));
                lab_failed(&at, &format!("the counts are damaged: {why}"))
            })?));
        }
        Ok(runs)
    }

    /// The recording of what was counted in a run; `handlers` were asked for.
    fn recording(
        &self,
        installed: &Installed,
        job: &Job,
        counted: Counted,
        mut handlers: Vec<CountedHandler>,
        without: Option<f64>,
    ) -> Result<Recording, String> {
        let Installed { side, placement, module, .. } = installed;
        let OfBuild { build, base, lines, .. } = self.of(*side);
        exact::add_unnamed(&mut handlers, &counted.counts, &build.name, &job.run.handlers);
        if let Some(wanted) = &job.wanted {
            exact::keep_wanted(&mut handlers, wanted, module);
        }
        let mut recording = exact::recording(&self.base.host, module, counted.loads);
        let params = build.subject.module().map(|_| build.params.clone());
        recording.modules.iter_mut().for_each(|it| it.given.clone_from(&params));
        recording.place = Some(SeriesPosition {
            boot: *placement,
            order: u32::from(*side == Side::Candidate),
            part: job.part.clone(),
        });
        recording.snapshot = Some(Snapshot {
            base: base.as_ref().unwrap_or(&self.base).key.clone(),
            placement: *placement,
            counts_sha256: counted.checksum,
            agent: self.options.agent.as_ref().map(Agent::words),
        });
        let (counts, symbols) = (&counted.counts, &installed.symbols);
        if let Some(without) = without {
            recording.driver_costs = exact::costs(counts, &job.run, without)?;
        }
        let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        exact::fill(&mut recording, counts, handlers, &lines, symbols)?;
        Ok(recording)
    }

    /// Instructions of an operation without the driver, of each group with a job whose cost is wanted. None of those whose load
    /// `failed`.
    fn without(
        &self,
        tasks: &[Task<'_>],
        failed: &mut BTreeMap<String, Failure>,
    ) -> Result<Without, Failure> {
        let guests = tasks.iter().flat_map(|task| &task.guests);
        let with_cost = guests.filter(|group| group.iter().any(|job| job.cost));
        let wanted: BTreeMap<String, &[Job]> =
            with_cost.map(|group| (key(group), *group)).collect();
        let wanted = Vec::from_iter(wanted);
        let (found, failure) = parallel(&wanted, self.options.jobs(), |(key, group)| {
            Ok((key.clone(), self.count_without(key, group)?))
        });
        let mut without = Without::new();
        for (key, (each, more)) in found {
            failed.extend(more);
            without.insert(key, each);
        }
        failure.map_or(Ok(without), Err)
    }

    /// The same of a group, by its job, and the loads that failed; kept with the base snapshot.
    fn count_without(
        &self,
        key: &str,
        group: &[Job],
    ) -> Result<(Vec<Option<f64>>, Vec<FailedLoad>), Failure> {
        let kept = self.base.folder.join(format!("without-{key}"));
        let known = fs::read(&kept).ok().and_then(|text| serde_json::from_slice(&text).ok());
        if let Some(known) = known {
            return Ok((known, Vec::new()));
        }
        let (at, loads) = ("without the driver", group_name(group));
        // Kept for all of them.
        let group: Vec<Job> =
            group.iter().map(|job| Job { left_out: false, ..job.clone() }).collect();
        let of = (at, &*format!("without-{loads}"));
        let counted = self.count(of, &self.base.folder, &group, "")?;
        let (mut each, mut failed) = (vec![None; group.len()], Vec::new());
        for ((job, counted), each) in group.iter().zip(&counted).zip(&mut each) {
            match failure_of(at, at, job, &counted.loads) {
                _ if !job.cost => {}
                Some(failure) => failed.push(failure),
                None => {
                    let operation = exact::operation(&counted.counts, &job.run)
                        .map_err(|why| lab_failed(&format!("{at}, {loads}"), &why))?;
                    *each = Some(operation.1);
                }
            }
        }
        // Without a place for it the next gate counts it again, and where a load failed, says so again.
        if failed.is_empty() {
            let text = serde_json::to_vec(&each).unwrap_or_default();
            let _ = OutputFile::open(&kept).and_then(|file| file.commit(&text));
        }
        Ok((each, failed))
    }
}

/// A build and a load that could not do what was asked, and why.
type FailedLoad = (String, Failure);

/// A run, if no load of it failed.
type Ran = Result<Recording, FailedLoad>;

/// Instructions of an operation without the driver, of each job of a group if it wants them, by the group's [key](key).
type Without = HashMap<String, Vec<Option<f64>>>;

/// That of a job on a build, if a load of it failed; `at` is where it did.
fn failure_of(build: &str, at: &str, job: &Job, loads: &[LoadRun]) -> Option<FailedLoad> {
    let name = exact::load_name(&job.run);
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

impl Task<'_> {
    /// Whether a guest's runs of this and of the `other` task are made in turn.
    fn is_in_turn(&self, other: Option<&Self>, guest: &[Job]) -> bool {
        guest.iter().any(|job| job.only_if_called.is_some())
            && other.is_some_and(|it| it.placement == self.placement && it.guests.contains(&guest))
    }
}

/// What a machine is started for.
enum Step<'a> {
    Install(&'a Task<'a>),
    /// Jobs on the builds of these tasks, one after the other.
    Run(&'a [Task<'a>], &'a [Job]),
}

/// All steps of these tasks, in an order in which no CPU waits: each build is installed before the runs of the one before it begin.
fn steps<'a>(tasks: &'a [Task<'a>]) -> Vec<Step<'a>> {
    let mut steps = Vec::from_iter(tasks.first().map(Step::Install));
    for (at, task) in tasks.iter().enumerate() {
        let (before, next) = (at.checked_sub(1).map(|at| &tasks[at]), tasks.get(at + 1));
        steps.extend(next.map(Step::Install));
        for guest in &task.guests {
            if !task.is_in_turn(before, guest) {
                let builds = 1 + usize::from(task.is_in_turn(next, guest));
                steps.push(Step::Run(&tasks[at..at + builds], guest));
            }
        }
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
    if job.program.is_some() {
        return "program".to_owned();
    }
    let (load, dimensions) = (exact::load_name(&job.run), job.run.dimensions.to_string());
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
        let checksum = format!("{:x}", Sha256::digest(&text));
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

/// What the operations of a group are runs of, if not of its loads.
fn program(group: &[Job]) -> Option<&Agent> {
    group.iter().find_map(|job| job.program.as_ref())
}

/// A name for what a group's runs without the driver depend on.
fn key(group: &[Job]) -> String {
    let program = program(group).map(Agent::id).unwrap_or_default();
    let text = serde_json::to_string(&specs(group)).unwrap_or_default() + &program;
    format!("{:.16x}", Sha256::digest(text))
}

/// What a guest does for a group: the same text for all builds, as reading it takes instructions.
fn specs(group: &[Job]) -> Vec<RunSpec> {
    group.iter().map(|job| RunSpec { handlers: Vec::new(), ..job.run.clone() }).collect()
}

/// Snapshots of builds that exist at a time: each takes about 90 MB.
const CHUNK: usize = 6;

fn lab_failed(at: &str, why: &str) -> Failure {
    Failure::new(exit::LAB_FAILED, format!("{at}: {why}"))
}
