//! A gate of two builds: chooses what to measure, measures it in VMs, and judges that.

mod rounds;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use profiler_base::error::{Failure, exit};
use profiler_base::progress::Progress;
use profiler_base::text::{listed, phrases};
use profiler_export::verdict::{Evidence, LeftOut};
use profiler_kernel::hooks::Hook;
use profiler_load::PrivateFolder;
use profiler_load::profile::{Library, LoadProfile};
use profiler_recording::unlike::What;
use profiler_recording::{Recording, Series};
use profiler_system::find_program;
use profiler_verdict::{HookReport, Rule, Run};

use crate::changed::Changed;
use crate::prepare::{self, changed_defaults};
use crate::registered::Registered;
use crate::session::{Reach, Session};
use crate::subject::Subject;
use crate::{KernelBuilds, builds, cache, private_folder, snapshots};
use rounds::Rounds;

/// Two builds to compare.
#[derive(Debug, Clone)]
pub struct Options {
    /// Kernels, subjects and what runs beside them.
    pub lab: super::Options,
    /// Handlers to judge, by name or glob; none is all functions that the driver gives to the kernel.
    pub handlers: Vec<glob::Pattern>,
    /// Further parameters of the driver, as insmod takes them.
    pub module_params: String,
    /// Parameters of each build alone: the baseline's, and the candidate's.
    pub own_params: [String; 2],
    /// Folder for the recordings.
    pub out: Option<PathBuf>,
    /// Folder in which the baseline's runs are kept for the next candidate.
    pub cache: Option<PathBuf>,
    /// Leave out loads that run nothing that differs between the builds.
    pub changed_only: bool,
    /// What else may differ between the runs of both.
    pub allowed: Vec<What>,
    /// The last release, if it is measured beside the candidate.
    pub release: Vec<Subject>,
    /// A release is compared with the candidate, too, under each load that is made, or the candidate's runs will be one.
    pub has_release: bool,
}

impl Options {
    /// What differs between the builds; `None` if that is not known.
    pub fn changed(&self) -> Option<Changed> {
        let pairs: Vec<(&Path, &Path)> = self.pairs().collect();
        let is_each = self.lab.subjects.iter().all(|of| of.len() == pairs.len());
        Changed::between(pairs).filter(|_| is_each)
    }

    /// What there is to judge if nothing has `changed`, and no figure is wanted all the same.
    pub fn equal(&self, changed: Option<&Changed>, rule: &Rule) -> Option<Evidence> {
        let changed = changed.filter(|changed| changed.is_nothing() && !self.needs_all(rule))?;
        Some(Evidence {
            changed: Some(changed.words()),
            is_equal: true,
            left_out: Some(LeftOut::default()),
            rule: rule.clone(),
            ..Evidence::default()
        })
    }

    /// What may differ between the runs of both: parameters of one build alone are what was asked for.
    fn allowed(&self) -> Vec<What> {
        let own = (self.own_params != [""; 2]).then_some(What::Parameters);
        self.allowed.iter().copied().chain(own).collect()
    }

    /// Whether figures are wanted of what does not differ, too. What loads the driver, or with which parameters, may change each run;
    /// budgets, a release and a new baseline are of each.
    fn needs_all(&self, rule: &Rule) -> bool {
        let [base, candidate] = &self.own_params;
        base != candidate || self.has_release || !rule.budgets.is_empty()
    }

    /// What is measured of the release beside the candidate.
    fn beside_release(&self) -> Self {
        let mut beside = Self { out: None, ..self.clone() };
        beside.lab.subjects[0] = std::mem::take(&mut beside.release);
        beside.own_params[0].clear();
        beside
    }

    /// The builds of a driver for one kernel each.
    fn pairs(&self) -> impl Iterator<Item = (&Path, &Path)> {
        let [base, candidates] = &self.lab.subjects;
        base.iter().filter_map(Subject::module).filter_map(|base| {
            let wanted = Some(target_of(base)?);
            let mut candidates = candidates.iter().filter_map(Subject::module);
            Some((base, candidates.find(|other| target_of(other) == wanted)?))
        })
    }

    /// Whether to tell if a hook was reached: who asks for some handlers is told that of theirs. What differs is told of all hooks.
    fn asks_about(&self, hook: &Hook) -> bool {
        let mut handlers = hook.handlers.iter();
        self.handlers.is_empty()
            || handlers.any(|name| self.handlers.iter().any(|wanted| wanted.matches(name)))
    }

    /// Parameters whose defaults differ between the builds, in words, by name.
    fn changed_defaults(&self) -> BTreeMap<String, String> {
        let changed = self.pairs().map(|(base, candidate)| changed_defaults(base, candidate));
        changed.flatten().collect()
    }
}

/// The module in a file, and the kernel that it was built for.
fn target_of(file: &Path) -> Option<(String, Option<String>)> {
    prepare::inspect(file).ok().map(|module| (module.name, module.built_for))
}

/// What is to be measured.
pub struct Planned {
    options: Options,
    /// What differs between the builds, if that is known.
    changed: Option<Changed>,
    session: Session,
    /// The part of it that is measured.
    measured: Session,
    /// Removed with it, and what is in it: the builds, the program, the VMs' files.
    _folder: PrivateFolder,
    benches: Vec<KernelBuilds>,
    /// For each kernel, if a cache was asked for; or why there is none.
    cached: Result<Vec<Cached>, String>,
    /// The release and the candidate, if that is a build.
    beside_release: Option<Box<Planned>>,
}

/// The baseline's runs on a kernel.
struct Cached {
    /// The file that they are kept in.
    file: PathBuf,
    /// What was kept before.
    runs: Option<Vec<Recording>>,
}

impl Planned {
    /// Chooses handlers, loads and kernels for builds of which this has `changed`.
    ///
    /// # Errors
    /// If a build or a kernel cannot be read, or there is nothing to measure.
    pub fn of(mut options: Options, changed: Option<Changed>) -> Result<Self, Failure> {
        let session = choose(&options)?;
        let measured = match &changed {
            Some(changed) if options.changed_only => session.only(changed),
            _ => session.clone(),
        };
        let own_params = options.own_params.each_ref();
        options.lab.params = own_params
            .map(|own| session.clone().with_parameters(&BTreeMap::new(), own).module_params);
        options.lab.check()?;
        let folder = private_folder("profiler-gate-")?;
        let benches = builds::of_kernels(&options.lab, folder.path())?;
        let beside_release = match options.release[..] {
            [] => None,
            _ => {
                let beside = options.beside_release();
                let changed = beside.changed();
                Some(Box::new(Self::of(beside, changed)?))
            }
        };
        let mut planned = Self {
            options,
            changed,
            session,
            measured,
            _folder: folder,
            benches,
            cached: Ok(Vec::new()),
            beside_release,
        };
        if let Some(folder) = &planned.options.cache {
            let cached = planned.cached(folder);
            planned.cached = cached.map_err(|error| format!("{}: {error}", folder.display()));
        }
        Ok(planned)
    }

    /// The cache in `folder`, with what it has for each kernel.
    fn cached(&self, folder: &Path) -> std::io::Result<Vec<Cached>> {
        let folder = cache::open(folder)?;
        let cached = (0..self.benches.len()).map(|number| {
            let file = folder.join(self.key(number)? + ".json");
            Ok(Cached { runs: cache::find(&file), file })
        });
        cached.collect()
    }

    /// The cache's for a kernel, if there is one.
    fn cached_of(&self, number: usize) -> Option<&Cached> {
        self.cached.as_ref().ok()?.get(number)
    }

    /// What the baseline's runs on a kernel depend on.
    fn key(&self, number: usize) -> std::io::Result<String> {
        let (bench, lab) = (&self.benches[number], &self.options.lab);
        let subject = &bench.builds[0].subject;
        let qemu = find_program(bench.kernel.arch.qemu()).unwrap_or_default();
        let program = Path::new("/proc/self/exe");
        let work = self.session.work(self.kernel(number));
        let what = (work, &lab.memory, &lab.agent, subject.command());
        let files: Vec<&Path> =
            [program, &qemu, &bench.kernel.path].into_iter().chain(subject.module()).collect();
        cache::key(&files, &[&format!("{what:?}"), &lab.params[0]])
    }

    /// The name of a kernel where there are several.
    fn kernel(&self, number: usize) -> Option<&str> {
        (self.benches.len() > 1).then(|| &*self.benches[number].kernel.release)
    }

    /// What will be measured, for a reader.
    pub fn text(&self) -> String {
        let kernels: Vec<&str> = self.benches.iter().map(|bench| &*bench.kernel.release).collect();
        let cached = self.cached.iter().flatten().filter(|cached| cached.runs.is_some()).count();
        let kept = snapshots::kept();
        let releases: Vec<&str> = kept.iter().map(|kept| &*kept.release).collect();
        let snapshots = kernels.iter().filter(|release| releases.contains(release)).count();
        let lab = &self.options.lab;
        let mut text = self.measured.text(&kernels, cached, snapshots);
        let defaults: Vec<String> = self.options.changed_defaults().into_values().collect();
        if !defaults.is_empty() {
            text.push_str(&format!("defaults  {}\n", phrases(&defaults)));
        }
        let own = ["baseline", "candidate"].iter().zip(&self.options.own_params);
        for (side, params) in own.filter(|(_, params)| !params.is_empty()) {
            text.push_str(&format!("{side:<9} loaded with {params}, too\n"));
        }
        let subjects = lab.subjects.iter().flatten();
        for agent in lab.agent.iter().chain(subjects.filter_map(Subject::command)) {
            text.push_str(&format!("subject   {}\n", agent.words()));
        }
        if let Some(words) = self.words() {
            text.push_str(&format!("changed   {words}\n"));
        }
        if let Err(why) = &self.cached {
            text.push_str(&format!("cache     none: {why}\n"));
        }
        if let Some(beside) = &self.beside_release {
            text.push_str(&format!("beside the release, in addition\n{}", beside.text()));
        }
        text
    }

    /// Whether runs of another plan's baseline are runs of this one's.
    fn has_baseline_of(&self, other: &Self) -> bool {
        let keys = [self, other].map(|of| {
            let keys = (0..of.benches.len()).map(|number| of.key(number));
            keys.collect::<Result<Vec<_>, _>>().ok()
        });
        keys[0].is_some() && keys[0] == keys[1]
    }

    /// What differs between the builds, if general loads that call nothing of it are left out.
    fn changed_alone(&self, rule: &Rule) -> Option<&Changed> {
        self.changed.as_ref().filter(|changed| {
            self.measured != self.session
                && !changed.functions.is_empty()
                && !self.options.needs_all(rule)
        })
    }

    /// What differs between the builds, and what is left out therefore.
    fn words(&self) -> Option<String> {
        let words = self.changed.as_ref()?.words();
        Some(match self.options.changed_only {
            false => words,
            true if self.measured == self.session => {
                format!("{words}; every load may run that, and is measured")
            }
            true => {
                let loads: Vec<&str> =
                    self.measured.loads.iter().map(|load| load.kind.name()).collect();
                let left_out = self.session.loads.len() - loads.len();
                let loads = listed(&loads);
                format!(
                    "{words}; measured under the loads that run that ({loads}), not under {left_out} others"
                )
            }
        })
    }

    /// Measures both builds, and then the release and the candidate.
    ///
    /// # Errors
    /// If a VM fails, or recordings cannot be written; what there is is written.
    pub fn measure(&self, rule: Rule, progress: &mut Progress) -> Result<Evidence, Failure> {
        let (mut evidence, [baseline, candidate]) =
            self.measure_but(Default::default(), rule, progress)?;
        if let Some(beside) = &self.beside_release {
            progress.say("beside the release");
            // A release that is the baseline was measured.
            let release = if beside.has_baseline_of(self) { baseline } else { Vec::new() };
            let rule = evidence.rule.beside_release();
            // A hook that one of the builds lacks is not turned on in the other.
            let [own, other] = [self, beside].map(|of| &of.options.lab.params[1]);
            let candidate = if own == other { candidate } else { Vec::new() };
            match beside.measure_but([release, candidate], rule, progress) {
                Ok((of_release, _)) => evidence.release = Some(Box::new(of_release)),
                // What was measured before is judged.
                Err(failure) if failure.code == exit::LAB_FAILED => {
                    let left_out = evidence.left_out.get_or_insert_default();
                    left_out.failed.push(format!("the release: {}", failure.message));
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(evidence)
    }

    /// Measures what is not `known` of both builds; with what is known then: all runs with all handlers.
    fn measure_but(
        &self,
        known: [Vec<Recording>; 2],
        rule: Rule,
        progress: &mut Progress,
    ) -> Result<(Evidence, [Vec<Recording>; 2]), Failure> {
        let mut rounds = Rounds::new(self, rule, known, progress);
        let measured = rounds.all();
        if let Some(out) = &self.options.out {
            keep(out, &self.benches, &rounds.runs)?;
        }
        measured?;
        let Rounds { rule, reach, registered, alike, failed, runs, known, .. } = rounds;
        let kernels: Vec<Option<&str>> = (0..reach.len()).map(|at| self.kernel(at)).collect();
        let mut left_out = left_out(reach.into_iter().zip(kernels), registered.as_ref());
        left_out.failed.extend(failed.into_values().map(|failure| failure.message));
        if !self.session.has_general() {
            left_out.not_judged.push("general operations, as --handler names handlers".to_owned());
        }
        let changed = self.words().map(|words| match alike.is_empty() {
            true => words,
            false => format!(
                "{words}; under {} the baseline alone, which calls nothing of that there",
                listed(&Vec::from_iter(alike))
            ),
        });
        let no_cache = self.cached.as_ref().err();
        let evidence = Evidence {
            runs,
            allowed: self.options.allowed(),
            rule,
            changed,
            defaults: Some(self.options.changed_defaults().into_values().collect()),
            registered,
            left_out: Some(left_out),
            note: no_cache
                .map(|why| format!("the baseline's runs are not kept for the next gate: {why}")),
            ..Evidence::default()
        };
        Ok((evidence, known))
    }

    /// Keeps the baseline's runs for the next candidate. Without a place for them the gate goes on.
    fn remember(&self, number: usize, baseline: &[Recording], progress: &mut Progress) {
        let Some(cached) = self.cached_of(number) else { return };
        if cached.runs.as_ref().is_some_and(|runs| runs.len() == baseline.len()) {
            return;
        }
        if let Err(failure) = cache::keep(&cached.file, baseline) {
            progress.say(&format!("the baseline's runs are not kept: {}", failure.message));
        }
    }
}

/// What is not judged on any kernel: hooks first, and then handlers where hooks are not known. A kernel without a handler that is judged
/// is no part of a pass.
fn left_out<'a>(
    reached: impl Iterator<Item = (Reach, Option<&'a str>)>,
    registered: Option<&HookReport>,
) -> LeftOut {
    let unreached = registered.map(|registered| registered.unreached.clone());
    let mut left_out = LeftOut { unreached: unreached.unwrap_or_default(), ..LeftOut::default() };
    for (reach, kernel) in reached {
        if let Some(kernel) = kernel.filter(|_| reach.is_nothing()) {
            left_out
                .failed
                .push(format!("{kernel}: no load reached a handler often enough to judge it"));
        }
        left_out.unreached.extend(reach.unreached);
        left_out.not_judged.extend(reach.not_judged);
    }
    left_out
}

/// Reads both builds and all load profiles.
fn choose(options: &Options) -> Result<Session, Failure> {
    let subjects = options.lab.subjects.iter().flatten();
    let (mut names, mut found) = (Vec::new(), Vec::new());
    for file in subjects.filter_map(Subject::module) {
        names.push(prepare::inspect(file)?.name);
        found.push(Registered::read(file)?);
    }
    let listed = Library::of_user(&[]).list()?;
    let profiles: Vec<LoadProfile> = listed
        .into_iter()
        .filter(|listed| !listed.hidden)
        .map(|listed| listed.profile)
        .collect::<Result<_, _>>()?;
    let command = options.lab.subjects[0].iter().find_map(Subject::command);
    let other = command.map(|agent| agent.installs).unwrap_or_default().module();
    let name = names.first().map_or(other, String::as_str);
    Session::choose(name, &found, &profiles, &options.handlers)
        .map(|session| {
            // One value for both would hide what changed.
            session.with_parameters(&options.changed_defaults(), &options.module_params)
        })
        .map_err(|why| Failure::new(exit::BAD_INPUT, why))
}

/// Writes the recordings, in a folder for each kernel where there are several.
fn keep(out: &Path, benches: &[KernelBuilds], sides: &[Vec<Run>; 2]) -> Result<(), Failure> {
    for bench in benches {
        let release = &bench.kernel.release;
        let folder = if benches.len() > 1 { out.join(release) } else { out.to_owned() };
        fs::create_dir_all(&folder).map_err(Failure::cannot_write(&folder))?;
        for (name, runs) in ["baseline", "candidate"].into_iter().zip(sides) {
            let runs = runs.iter().map(|run| &run.recording);
            let on_kernel = runs.filter(|run| run.host.kernel_release.as_ref() == Some(release));
            let runs: Vec<Recording> = on_kernel.cloned().collect();
            if !runs.is_empty() {
                Series::new(name, runs).write(&folder.join(format!("{name}.json")))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_a_judged_handler_is_named_and_one_without_hooks_keeps_its_handlers() {
        let hooks = HookReport { unreached: vec!["kprobe a".to_owned()], ..HookReport::default() };
        let on_arm64 = || {
            let mut reach = Reach::default();
            reach.unreached.push("f on arm64".to_owned());
            reach
        };
        let reached = [(Reach::default(), None), (on_arm64(), Some("arm64"))];
        let found = left_out(reached.into_iter(), Some(&hooks));
        assert_eq!(found.unreached, ["kprobe a", "f on arm64"]);
        // The only kernel's lines are all there are.
        assert_eq!(found.failed, ["arm64: no load reached a handler often enough to judge it"]);
        assert_eq!(left_out([(on_arm64(), None)].into_iter(), None).unreached, ["f on arm64"]);
    }
}
