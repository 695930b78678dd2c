//! A gate of two builds: chooses what to measure, measures it in VMs, and judges that.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

use super::output::Outputs;
use super::{conclude, judged};
use crate::atomic_file::OutputFile;
use crate::cli::gate::{BuildsArgs, GateArgs};
use crate::cmd::lab::watch;
use crate::cmd::to_stdout;
use crate::error::{Failure, exit};
use crate::export::verdict::{GateReport, LeftOut};
use crate::lab::cache::{Cache, Key};
use crate::lab::registered::Registered;
use crate::lab::session::{self, Design, Reach, Session};
use crate::lab::{self, Bench, Options, Settings, builds, tools};
use crate::load_profile::{Library, LoadProfile};
use crate::prepare;
use crate::progress::Progress;
use crate::recording::unlike::What;
use crate::recording::{Clock, Meter, Recording, Series};
use crate::text::listed;
use crate::verdict::{self, Rule, Run, Sides};

/// Longest that a boot may take: ten times what it takes on a machine that does nothing else.
const TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// Measures and judges; see the [command line](BuildsArgs).
pub(super) fn run(args: &GateArgs, rule: Rule) -> Result<(), Failure> {
    let planned = Planned::of(&args.builds)?;
    if args.builds.plan {
        return to_stdout(&planned.text());
    }
    let outputs = Outputs::open(args)?;
    let new_baseline = args.update_baseline.as_deref().map(OutputFile::open).transpose()?;
    let mut progress = Progress::new(args.builds.quiet);
    for line in planned.text().lines() {
        progress.say(line);
    }
    let (report, candidate) =
        planned.decide(&args.builds, &args.sides.allow_different, rule, &mut progress)?;
    outputs.write(args, &report)?;
    conclude(args, &report, new_baseline, candidate)
}

/// What is to be measured.
pub(in crate::cmd) struct Planned {
    session: Session,
    options: Options,
    /// Removed with it, and what is in it: the builds, the program, the VMs' files.
    folder: tempfile::TempDir,
    benches: Vec<Bench>,
    side_by_side: u32,
    cache: Option<Cache>,
    /// For each kernel, if there is a cache.
    cached: Vec<Cached>,
    /// Why there is none, where one was asked for.
    no_cache: Option<String>,
}

/// The baseline's runs on a kernel.
struct Cached {
    /// What they are kept as.
    key: Key,
    /// What was kept before.
    runs: Option<Vec<Recording>>,
}

impl Planned {
    /// Chooses handlers, loads and kernels.
    ///
    /// # Errors
    /// If a build or a kernel cannot be read, or there is nothing to measure.
    pub(in crate::cmd) fn of(args: &BuildsArgs) -> Result<Self, Failure> {
        let vng = tools::find(&args.vng)
            .map_err(|error| Failure::new(exit::CANNOT_MEASURE, error.to_string()))?;
        let session = choose(args)?;
        let options = options(args, &session, &vng);
        options.check()?;
        let folder = tempfile::Builder::new()
            .prefix("profiler-gate-")
            .tempdir()
            .map_err(|error| cannot_write(&std::env::temp_dir(), &error))?;
        let benches = builds::benches(&options, false, folder.path())?;
        let side_by_side = available_parallelism().map_or(1, |cpus| cpus.get() as u32);
        let mut planned = Self {
            session,
            options,
            folder,
            benches,
            side_by_side,
            cache: None,
            cached: Vec::new(),
            no_cache: None,
        };
        if let Some(folder) = &args.cache {
            match planned.cached(folder) {
                Ok((cache, cached)) => (planned.cache, planned.cached) = (Some(cache), cached),
                Err(error) => planned.no_cache = Some(format!("{}: {error}", folder.display())),
            }
        }
        Ok(planned)
    }

    /// The cache in `folder`, with what it has for each kernel.
    fn cached(&self, folder: &Path) -> std::io::Result<(Cache, Vec<Cached>)> {
        let cache = Cache::open(folder)?;
        let cached = |number| {
            let key = self.key(number)?;
            let runs = cache.find(&key);
            Ok(Cached { key, runs })
        };
        let cached = (0..self.benches.len()).map(cached).collect::<std::io::Result<_>>()?;
        Ok((cache, cached))
    }

    /// What the baseline's runs on a kernel depend on. The guest works below the folder of temporary files, whose name a driver
    /// may write down.
    fn key(&self, number: usize) -> std::io::Result<Key> {
        let bench = &self.benches[number];
        let qemu = tools::qemu().unwrap_or_default();
        let program = Path::new("/proc/self/exe");
        let work = self.session.work(self.kernel(number), &|_| true);
        let what = (work, session::FIRST, &self.options.memory, std::env::temp_dir());
        let params = &self.options.baseline_params;
        Key::of(
            &[program, &qemu, &self.options.vng, &bench.kernel.path, &bench.baseline.file],
            &[&format!("{what:?}"), params],
        )
    }

    /// The name of a kernel where there are several.
    fn kernel(&self, number: usize) -> Option<&str> {
        (self.benches.len() > 1).then(|| &*self.benches[number].kernel.release)
    }

    fn text(&self) -> String {
        let kernels: Vec<&str> = self.benches.iter().map(|bench| &*bench.kernel.release).collect();
        let cached = self.cached.iter().filter(|cached| cached.runs.is_some()).count();
        let mut text = self.session.text(&kernels, cached, self.side_by_side);
        if let Some(why) = &self.no_cache {
            text.push_str(&format!("cache     none: {why}\n"));
        }
        text
    }

    /// Measures both builds and judges them; also gives the candidate's runs.
    ///
    /// # Errors
    /// If a VM fails, or recordings cannot be written; what there is is written.
    pub(in crate::cmd) fn decide(
        &self,
        args: &BuildsArgs,
        allowed: &[What],
        mut rule: Rule,
        progress: &mut Progress,
    ) -> Result<(GateReport, Vec<Run>), Failure> {
        let folder = self.folder.path();
        let program = folder.join("profiler");
        fs::copy("/proc/self/exe", &program).map_err(|error| cannot_write(&program, &error))?;
        lab::plugin::write(folder).map_err(|error| cannot_write(folder, &error))?;
        let mut rounds =
            Rounds { planned: self, reach: Vec::new(), runs: [Vec::new(), Vec::new()] };
        let measured = rounds.all(allowed, &mut rule, progress);
        if let Some(out) = &args.out {
            keep(out, &self.benches, &rounds.runs)?;
        }
        measured?;
        let Rounds { reach, runs: [base, candidate], .. } = rounds;
        let mut left_out = LeftOut::default();
        for reach in reach {
            left_out.unreached.extend(reach.unreached);
            left_out.not_judged.extend(reach.not_judged);
        }
        let sides = Sides::new(&base, &candidate, allowed, false);
        Ok((judged(sides, &rule).without(left_out), candidate))
    }
}

impl Planned {
    /// Keeps the baseline's runs for the next candidate. Without a place for them the gate goes on.
    fn remember(&self, number: usize, measured: &lab::Measured, progress: &mut Progress) {
        let (Some(cache), Some(cached), None) =
            (&self.cache, self.cached.get(number), &measured.failure)
        else {
            return;
        };
        if let Err(failure) = cache.keep(&cached.key, &measured.baseline) {
            progress.say(&format!("the baseline's runs are not kept: {}", failure.message));
        }
    }
}

/// What was measured so far, and what that takes.
struct Rounds<'a> {
    planned: &'a Planned,
    /// One for each kernel that was measured.
    reach: Vec<Reach>,
    /// Of the baseline and of the candidate.
    runs: [Vec<Run>; 2],
}

impl Rounds<'_> {
    /// Measures all loads, and those under which the builds differ until a figure can fail. What the loads do not
    /// reach goes into `rule`.
    fn all(
        &mut self,
        allowed: &[What],
        rule: &mut Rule,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        for number in 0..self.planned.benches.len() {
            let cached = self.planned.cached.get(number).and_then(|cached| cached.runs.clone());
            self.measure(number, session::FIRST, 0, &|_| true, cached, progress)?;
        }
        for reach in &mut self.reach {
            // What the user says of a handler comes after it, and counts.
            rule.handlers.splice(0..0, std::mem::take(&mut reach.rules));
        }
        // A refusal is told by the gate.
        let Ok(sides) = Sides::new(&self.runs[0], &self.runs[1], allowed, false) else {
            return Ok(());
        };
        let open = verdict::open(&sides, rule);
        if open.parts.is_empty() {
            return Ok(());
        }
        let names: Vec<&String> = open.parts.iter().flatten().collect();
        progress.say(&format!("the builds differ under {}: more runs of that", listed(&names)));
        let is_open = |name: &str| names.iter().any(|open| *open == name);
        for number in 0..self.planned.benches.len() {
            let is_cached =
                self.planned.cached.get(number).is_some_and(|cached| cached.runs.is_some());
            let first = (!is_cached).then_some(session::FIRST);
            let design = session::further(first, rule.alpha, open.comparisons);
            self.measure(number, design, session::FIRST.boots, &is_open, None, progress)?;
            if is_cached {
                // Runs of different boots cannot show that a figure differs: those of the same boots alone count for it.
                let kernel = &self.planned.benches[number].kernel.release;
                for runs in &mut self.runs {
                    runs.retain(|run| !is_first_of_open(run, kernel, &is_open));
                }
            }
        }
        Ok(())
    }

    /// Measures the loads that `is_wanted` on a kernel, of the candidate alone if the baseline's runs are `cached`. What there
    /// is when it fails is kept.
    fn measure(
        &mut self,
        number: usize,
        design: Design,
        first_boot: u32,
        is_wanted: &dyn Fn(&str) -> bool,
        cached: Option<Vec<Recording>>,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let Planned { session, options, folder, benches, side_by_side, .. } = self.planned;
        let kernel = self.planned.kernel(number);
        let mut bench = benches[number].clone();
        let files = [Some(&bench.baseline), bench.candidate.as_ref()];
        let files = files.map(|build| build.map_or_else(PathBuf::new, |build| build.given.clone()));
        let mut repeat = design.repeat;
        if cached.is_some()
            && let Some(candidate) = bench.candidate.take()
        {
            // As many runs as it has in turns with the other. They come at other places of a boot, by which figures of Elkeid's
            // driver moved by 0.08 % at most.
            (bench.baseline, repeat) = (candidate, 2 * repeat);
        }
        let work = session.work(kernel, is_wanted);
        if work.is_empty() {
            return Ok(());
        }
        let below = folder.path().join(format!("kernel-{number}"));
        let settings = Settings {
            first_boot,
            boots: design.boots,
            jobs: (*side_by_side).min(design.boots),
            repeat,
            work,
            ..options.settings(folder.path(), &below)
        };
        let mut measured = watch(&bench, &settings, progress);
        if let Some(cached) = cached {
            measured.candidate = std::mem::replace(&mut measured.baseline, cached);
        } else if self.reach.len() == number {
            self.planned.remember(number, &measured, progress);
        }
        if self.reach.len() == number {
            let reach = session.reach(kernel, &measured.baseline, &measured.candidate);
            self.reach.push(reach);
        }
        let sides = [measured.baseline, measured.candidate].into_iter().zip(&files);
        for (kept, (mut runs, file)) in self.runs.iter_mut().zip(sides) {
            self.reach[number].keep(&mut runs);
            kept.extend(named(file, runs));
        }
        measured.failure.map_or(Ok(()), Err)
    }
}

/// Whether a run is one of the first boots on a kernel, and of a part that `is_open`.
fn is_first_of_open(run: &Run, kernel: &str, is_open: &dyn Fn(&str) -> bool) -> bool {
    let on_kernel = run.recording.host.kernel_release.as_deref() == Some(kernel);
    on_kernel
        && run.recording.place.as_ref().is_some_and(|place| {
            place.boot < session::FIRST.boots && place.part.as_deref().is_some_and(is_open)
        })
}

/// Reads both builds and all load profiles.
fn choose(args: &BuildsArgs) -> Result<Session, Failure> {
    let read = |file| {
        Registered::read(file).map_err(|why| {
            Failure::new(exit::BAD_INPUT, format!("cannot read {}: {why}", file.display()))
        })
    };
    let mut names = Vec::new();
    for file in args.old.iter().chain(&args.new) {
        names.push(prepare::inspect(file)?.name);
    }
    let found: Vec<Registered> =
        args.old.iter().chain(&args.new).map(|file| read(file)).collect::<Result<_, _>>()?;
    let listed = Library::of_user(&[]).list()?;
    let profiles: Vec<LoadProfile> = listed
        .into_iter()
        .filter(|listed| !listed.hidden)
        .map(|listed| listed.profile)
        .collect::<Result<_, _>>()?;
    let name = names.first().map_or("", String::as_str);
    Session::choose(name, &found, &profiles, &args.handlers)
        .map(|session| session.with_parameters(&args.module_params))
        .map_err(|why| Failure::new(exit::BAD_INPUT, why))
}

fn options(args: &BuildsArgs, session: &Session, vng: &Path) -> Options {
    let params = &session.module_params;
    Options {
        kernels: args.kernel.clone(),
        baseline: args.old.clone(),
        baseline_params: params.clone(),
        candidate: args.new.clone(),
        candidate_params: params.clone(),
        handlers: vec!["*".to_owned()],
        loads: session.loads.iter().map(|load| load.kind).collect(),
        workers: 1,
        rate: None,
        length: None,
        repeat: None,
        boots: None,
        jobs: None,
        clock: Clock::Virtual,
        meter: Meter::Exact,
        cpus: None,
        memory: "2G".to_owned(),
        timeout: TIMEOUT,
        cost: false,
        vng: vng.to_owned(),
        logs: args.logs.as_deref().map(crate::cmd::lab::absolute),
    }
}

fn named(file: &Path, recordings: Vec<Recording>) -> impl Iterator<Item = Run> {
    let name = |recording: &Recording| {
        let place = recording.place.as_ref();
        place.map_or(String::new(), |place| format!(", boot {}, run {}", place.boot, place.order))
    };
    recordings.into_iter().map(move |recording| Run {
        name: format!("{}{}", file.display(), name(&recording)),
        recording,
    })
}

/// Writes the recordings, in a folder for each kernel where there are several.
fn keep(out: &Path, benches: &[Bench], sides: &[Vec<Run>; 2]) -> Result<(), Failure> {
    for bench in benches {
        let release = &bench.kernel.release;
        let folder = if benches.len() > 1 { out.join(release) } else { out.to_owned() };
        fs::create_dir_all(&folder).map_err(|error| cannot_write(&folder, &error))?;
        for (name, runs) in ["baseline", "candidate"].into_iter().zip(sides) {
            let on_kernel =
                |run: &&Run| run.recording.host.kernel_release.as_ref() == Some(release);
            let runs: Vec<Recording> =
                runs.iter().filter(on_kernel).map(|run| run.recording.clone()).collect();
            if !runs.is_empty() {
                Series::new(name, runs).write(&folder.join(format!("{name}.json")))?;
            }
        }
    }
    Ok(())
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(exit::BAD_OUTPUT, format!("cannot write {}: {error}", path.display()))
}
