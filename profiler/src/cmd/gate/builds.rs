//! A gate of two builds: chooses what to measure, measures it in VMs, and judges that.

use std::fs;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::Duration;

use super::output::Outputs;
use super::{conclude, judged};
use crate::atomic_file::OutputFile;
use crate::cli::gate::{BuildsArgs, GateArgs};
use crate::cmd::lab::watch;
use crate::cmd::to_stdout;
use crate::error::{Failure, exit};
use crate::export::verdict::LeftOut;
use crate::lab::registered::Registered;
use crate::lab::session::Session;
use crate::lab::{self, Bench, Measured, Options, builds, tools};
use crate::load_profile::{Library, LoadProfile};
use crate::prepare;
use crate::profile::{Clock, Meter, Profile, Series};
use crate::progress::Progress;
use crate::verdict::{Rule, Run, Sides};

/// Longest that a boot may take: ten times what it takes on a machine that does nothing else.
const TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// Measures and judges; see the [command line](BuildsArgs).
pub(super) fn run(args: &GateArgs, mut rule: Rule) -> Result<(), Failure> {
    let BuildsArgs { old, new, .. } = &args.builds;
    let vng = tools::find(&args.builds.vng)
        .map_err(|error| Failure::new(exit::CANNOT_MEASURE, error.to_string()))?;
    let session = choose(&args.builds)?;
    let options = options(&args.builds, &session, &vng);
    options.check()?;
    let folder = tempfile::Builder::new()
        .prefix("profiler-gate-")
        .tempdir()
        .map_err(|error| cannot_write(&std::env::temp_dir(), &error))?;
    let benches = builds::benches(&options, false, folder.path())?;
    let session = session.designed(rule.alpha, benches.len());
    let side_by_side = available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    let kernels: Vec<&str> = benches.iter().map(|bench| &*bench.kernel.release).collect();
    let plan = session.text(&kernels, side_by_side);
    if args.builds.plan {
        return to_stdout(&plan);
    }
    let mut progress = Progress::new(args.builds.quiet);
    for line in plan.lines() {
        progress.say(line);
    }

    let outputs = Outputs::open(args)?;
    let new_baseline = args.update_baseline.as_deref().map(OutputFile::open).transpose()?;
    let program = folder.path().join("profiler");
    fs::copy("/proc/self/exe", &program).map_err(|error| cannot_write(&program, &error))?;
    lab::plugin::write(folder.path()).map_err(|error| cannot_write(folder.path(), &error))?;
    let (mut base, mut candidate) = (Vec::new(), Vec::new());
    let mut left_out = LeftOut::default();
    for (number, bench) in benches.iter().enumerate() {
        let kernel = (benches.len() > 1).then_some(&*bench.kernel.release);
        let below = folder.path().join(format!("kernel-{number}"));
        let mut settings = options.settings(folder.path(), &below);
        settings.boots = session.boots;
        settings.jobs = side_by_side.min(session.boots);
        settings.repeat = session.repeat;
        settings.work = session.work(kernel);
        let measured = watch(bench, &settings, &mut progress);
        let Measured { baseline: mut of_old, candidate: mut of_new, failure } = measured;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let reach = session.reach(kernel, &mut of_old, &mut of_new);
        left_out.unreached.extend(reach.unreached);
        left_out.not_judged.extend(reach.not_judged);
        // What the user says of a handler comes after it, and counts.
        rule.handlers.splice(0..0, reach.rules);
        if let Some(out) = &args.builds.out {
            keep(out, kernel, bench, [&of_old, &of_new])?;
        }
        base.extend(runs(&old[number.min(old.len() - 1)], of_old));
        candidate.extend(runs(&new[number.min(new.len() - 1)], of_new));
    }
    let sides = Sides::new(&base, &candidate, &args.sides.allow_different, false);
    let report = judged(sides, &rule).without(left_out);
    outputs.write(args, &report)?;
    conclude(args, &report, new_baseline, candidate)
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
        .map_err(|why| Failure::new(exit::BAD_INPUT, why))
}

fn options(args: &BuildsArgs, session: &Session, vng: &Path) -> Options {
    let params = format!("{} {}", session.module_params, args.module_params).trim().to_owned();
    Options {
        kernels: args.kernel.clone(),
        baseline: args.old.clone(),
        baseline_params: params.clone(),
        candidate: args.new.clone(),
        candidate_params: params,
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

fn runs(file: &Path, profiles: Vec<Profile>) -> impl Iterator<Item = Run> {
    let name = |profile: &Profile| {
        let place = profile.place.as_ref();
        place.map_or(String::new(), |place| format!(", boot {}, run {}", place.boot, place.order))
    };
    profiles
        .into_iter()
        .map(move |profile| Run { name: format!("{}{}", file.display(), name(&profile)), profile })
}

/// Writes the recordings of one kernel.
fn keep(
    out: &Path,
    kernel: Option<&str>,
    bench: &Bench,
    sides: [&[Profile]; 2],
) -> Result<(), Failure> {
    let folder = kernel.map_or(out.to_owned(), |_| out.join(&bench.kernel.release));
    fs::create_dir_all(&folder).map_err(|error| cannot_write(&folder, &error))?;
    for (name, runs) in ["baseline", "candidate"].into_iter().zip(sides) {
        if !runs.is_empty() {
            Series::new(name, runs.to_vec()).write(&folder.join(format!("{name}.json")))?;
        }
    }
    Ok(())
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(exit::BAD_OUTPUT, format!("cannot write {}: {error}", path.display()))
}
