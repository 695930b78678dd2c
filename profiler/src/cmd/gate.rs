//! `profiler gate`: decides whether the candidate is slower than it may be.

mod output;

use std::path::PathBuf;

use super::sides::{Files, check_parameters, is_build, read};
use super::to_stdout;
use crate::cli::compare::SidesArgs;
use crate::cli::gate::{BuildsArgs, GateArgs};
use profiler_base::error::{Failure, bail};
use profiler_base::progress::Progress;
use profiler_export::gate::conclusion;
use profiler_export::verdict::GateReport;
use profiler_lab as lab;
use profiler_lab::gate::{Decision, Options, Planned};
use profiler_lab::subject::Subject;
use profiler_verdict::{self as verdict, HookReport, Rule, Run, Sides};

use output::Outputs;

/// See the [command line](GateArgs). All outputs are written whatever the outcome, except the new
/// baseline, which needs a pass.
///
/// # Errors
/// With the outcome's exit code unless it is a pass; or if a file is not a valid recording or rule, or
/// an output cannot be written.
pub fn run(mut args: GateArgs) -> Result<(), Failure> {
    let rule = rule(&args)?;
    let recordings = recordings(&mut args, &rule)?;
    let outputs = (!args.builds.plan).then(|| Outputs::open(&args)).transpose()?;
    let decided = match recordings {
        Some(files) => Some(of_recordings(&args, &files, &rule)?),
        None => of_builds(&args, rule)?,
    };
    match outputs.zip(decided) {
        Some((outputs, (report, candidate))) => outputs.write(&report, candidate),
        None => Ok(()),
    }
}

/// The recordings to judge; `None` if builds are to be measured, which then are among the arguments as such.
fn recordings(args: &mut GateArgs, rule: &Rule) -> Result<Option<Files>, Failure> {
    if args.builds.old.is_empty() {
        let files = Files::of(&args.sides, rule.budgets.is_empty())?;
        match (files.are_builds()?, args.builds.option()) {
            (false, None) => return Ok(Some(files)),
            (false, Some(option)) => bail!(
                USAGE,
                "{option} is for two builds: name .ko files or `run: COMMAND` in place of recordings"
            ),
            (true, _) if files.base.is_empty() => bail!(
                USAGE,
                "a build is judged beside another: name the baseline's .ko file, --, and the candidate's"
            ),
            (true, _) => (args.builds.old, args.builds.new) = (files.base, files.candidate),
        }
    }
    Ok(None)
}

/// The verdict, and the candidate's runs.
type Decided = (GateReport, Vec<Run>);

/// The rule of the file, overridden by the command line.
fn rule(args: &GateArgs) -> Result<Rule, Failure> {
    let file = args.config.as_deref().map_or(Ok(Rule::default()), Rule::read)?;
    Ok(Rule {
        limits: args.max_regression.clone().or(file.limits),
        max_loss: args.max_loss.unwrap_or(file.max_loss),
        floor: args.floor.or(file.floor),
        alpha: args.alpha.unwrap_or(file.alpha),
        allow_vanished: file.allow_vanished || args.allow_vanished,
        accept_new: [file.accept_new, args.accept_new.clone()].concat(),
        require_reached: file.require_reached || args.require_reached,
        budgets: [file.budgets, args.budget.clone()].concat(),
        handlers: file.handlers,
    })
}

/// Judges recordings.
fn of_recordings(args: &GateArgs, files: &Files, rule: &Rule) -> Result<Decided, Failure> {
    let (base, candidate) = files.read()?;
    let (builds, release) = release(args)?;
    if !builds.is_empty() {
        bail!(
            USAGE,
            "the release is a build, and what is judged are recordings: name recordings of the release"
        );
    }
    let mut report = judged(args, &base, &candidate, rule);
    let [old, new] =
        [&base, &candidate].map(|runs| runs.iter().map(|run| &run.recording).collect::<Vec<_>>());
    // Of several kernels each has its own.
    if let Some(registered) = HookReport::of(&old, &new, rule, &|_| true, &|_| None)
        && (!registered.is_same() || rule.require_reached)
    {
        report = report.with_hooks(registered, rule);
    }
    if let Some(release) = release {
        let rule = rule.beside_release(args.release_limit);
        report = report.beside(judged(args, &release, &candidate, &rule));
    }
    Ok((report, candidate))
}

/// Measures two builds, and judges them; `None` if what that takes was printed alone.
fn of_builds(args: &GateArgs, rule: Rule) -> Result<Option<Decided>, Failure> {
    let BuildsArgs { module_params, baseline_params, candidate_params, .. } = &args.builds;
    let options = options(args)?;
    check_parameters(&options.lab, module_params, [baseline_params, candidate_params])?;
    let changed = options.changed();
    // A budget and a new baseline need figures.
    if let Some(equal) = changed.as_ref().filter(|changed| changed.is_nothing())
        && rule.budgets.is_empty()
        && baseline_params == candidate_params
        && args.release.is_empty()
        && args.update_baseline.is_none()
    {
        let report = GateReport::of_equal(equal.words(), rule.alpha);
        if args.builds.plan {
            to_stdout(&(conclusion(report.outcome, &report.summary) + "\n"))?;
            return Ok(None);
        }
        return Ok(Some((report, Vec::new())));
    }
    let planned = Planned::of(options.clone(), changed)?;
    let (builds, release) = release(args)?;
    if let Some(release) = &release {
        planned.check_release(release)?;
    }
    let beside = match builds {
        [] => None,
        builds => Some(beside(args, options, builds)?),
    };
    let mut plan = planned.text();
    if let Some(beside) = &beside {
        plan += &format!("beside the release, in addition\n{}", beside.text());
    }
    if args.builds.plan {
        to_stdout(&plan)?;
        return Ok(None);
    }
    let mut progress = Progress::new(args.builds.guests.quiet);
    plan.lines().for_each(|line| progress.say(line));
    let allowed = &args.sides.allow_different;
    let Decision { mut report, candidate, known, rule } =
        planned.decide(allowed, rule, Default::default(), &mut progress)?;
    if let Some(release) = &release {
        let rule = rule.beside_release(args.release_limit);
        report = report.beside(judged(args, release, &candidate, &rule));
    }
    if let Some(beside) = &beside {
        progress.say("beside the release");
        let [baseline, of_candidate] = known;
        // A release that is the baseline was measured.
        let of_release = if beside.has_baseline_of(&planned) { baseline } else { Vec::new() };
        let rule = rule.beside_release(args.release_limit);
        let decided = beside.decide(allowed, rule, [of_release, of_candidate], &mut progress)?;
        report = report.beside(decided.report);
    }
    Ok(Some((report, candidate)))
}

/// The last release: builds, or its recordings.
fn release(args: &GateArgs) -> Result<(&[PathBuf], Option<Vec<Run>>), Failure> {
    let files = args.release.as_slice();
    match files.iter().all(|file| is_build(file)) {
        true => Ok((files, None)),
        false => Ok((&[], Some(read(files)?))),
    }
}

/// What is measured of a release beside the candidate.
fn beside(args: &GateArgs, options: Options, release: &[PathBuf]) -> Result<Planned, Failure> {
    let BuildsArgs { module_params, candidate_params, guests, .. } = &args.builds;
    let baseline = Subject::all(release, &guests.agent.agent_file)?;
    baseline.iter().try_for_each(|subject| subject.check_parameters(module_params))?;
    let [_, candidate] = options.lab.subjects;
    let options = Options {
        lab: lab::Options { subjects: [baseline, candidate], ..options.lab },
        out: None,
        own_params: [String::new(), candidate_params.clone()],
        ..options
    };
    let changed = options.changed();
    Planned::of(options, changed)
}

/// The candidate beside recordings of the baseline, or of the release.
fn judged(args: &GateArgs, base: &[Run], candidate: &[Run], rule: &Rule) -> GateReport {
    let SidesArgs { allow_different, independent_runs, .. } = &args.sides;
    let sides = Sides::new(base, candidate, allow_different, *independent_runs);
    GateReport::of(verdict::gate(sides, rule))
}

fn options(gate: &GateArgs) -> Result<Options, Failure> {
    let args = &gate.builds;
    let given = lab::Options::given([&args.old, &args.new], &args.guests)?;
    let lab = lab::Options { kernels: args.kernel.clone(), ..given };
    Ok(Options {
        lab,
        handlers: args.handlers.clone(),
        module_params: args.module_params.clone(),
        own_params: [args.baseline_params.clone(), args.candidate_params.clone()],
        out: args.out.clone(),
        cache: args.cache.clone(),
        changed_only: args.changed_only,
        has_release: !gate.release.is_empty() || gate.update_baseline.is_some(),
    })
}
