//! `profiler gate`: decides whether the candidate is slower than it may be.

mod output;

use std::path::PathBuf;

use profiler_base::error::{Failure, bail};
use profiler_base::progress::Progress;
use profiler_export::gate::conclusion;
use profiler_export::verdict::{Evidence, GateReport};
use profiler_lab as lab;
use profiler_lab::gate::{Options, Planned};
use profiler_lab::subject::Subject;
use profiler_verdict::{HookReport, Rule, Run};

use super::sides::{self, Files, check_parameters, is_build, read};
use super::to_stdout;
use crate::cli::compare::SidesArgs;
use crate::cli::gate::{BuildsArgs, GateArgs};
use output::Outputs;

/// See the [command line](GateArgs). All outputs are written whatever the outcome, except the new
/// baseline, which needs a pass.
///
/// # Errors
/// With the outcome's exit code unless it is a pass; or if a file is not a valid recording or rule, or
/// an output cannot be written.
pub fn run(args: &GateArgs) -> Result<(), Failure> {
    let rule = rule(args)?;
    let (files, are_builds) = judged(args, &rule)?;
    let outputs = (!args.builds.plan).then(|| Outputs::open(args)).transpose()?;
    let release = if release_builds(args).is_empty() { read(&args.release)? } else { Vec::new() };
    let evidence = match are_builds {
        true => of_builds(args, files, rule)?,
        false => Some(of_recordings(&args.sides, files, rule)?),
    };
    let Some((outputs, mut evidence)) = outputs.zip(evidence) else { return Ok(()) };
    if !release.is_empty() {
        let (candidate, rule) = (evidence.runs[1].clone(), evidence.rule.beside_release());
        evidence.release = Some(Box::new(of_runs(&args.sides, [release, candidate], rule)));
    }
    let report = GateReport::of(&evidence);
    let candidate = std::mem::take(&mut evidence.runs[1]);
    // Recordings are large.
    drop(evidence);
    outputs.write(&report, candidate)
}

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
        release_limit: args.release_limit,
    })
}

/// What is named by the arguments, and whether that is builds rather than recordings.
fn judged<'a>(args: &'a GateArgs, rule: &Rule) -> Result<(Files<'a>, bool), Failure> {
    let BuildsArgs { old, new, .. } = &args.builds;
    if !old.is_empty() {
        return Ok(([old, new], true));
    }
    let files = sides::files(&args.sides, rule.budgets.is_empty())?;
    let are_builds = sides::are_builds(files)?;
    match (are_builds, args.builds.option()) {
        (false, Some(option)) => bail!(
            USAGE,
            "{option} is for two builds: name .ko files or `run: COMMAND` in place of recordings"
        ),
        (false, None) if !release_builds(args).is_empty() => bail!(
            USAGE,
            "the release is a build, and what is judged are recordings: name recordings of the release"
        ),
        (true, _) if files[0].is_empty() => bail!(
            USAGE,
            "a build is judged beside another: name the baseline's .ko file, --, and the candidate's"
        ),
        _ => Ok((files, are_builds)),
    }
}

/// The last release, if it is builds and not recordings.
fn release_builds(args: &GateArgs) -> &[PathBuf] {
    if args.release.iter().all(|file| is_build(file)) { &args.release } else { &[] }
}

fn of_recordings(args: &SidesArgs, files: Files<'_>, rule: Rule) -> Result<Evidence, Failure> {
    let runs = sides::read_sides(files)?;
    let [old, new] =
        runs.each_ref().map(|runs| runs.iter().map(|run| &run.recording).collect::<Vec<_>>());
    // Of several kernels each has its own.
    let registered = HookReport::of(&old, &new, &rule, &|_| true, &|_| None)
        .filter(|registered| !registered.is_same() || rule.require_reached);
    Ok(Evidence { registered, ..of_runs(args, runs, rule) })
}

/// What is known of recordings by themselves.
fn of_runs(args: &SidesArgs, runs: [Vec<Run>; 2], rule: Rule) -> Evidence {
    let (allowed, independent) = (args.allow_different.clone(), args.independent_runs);
    Evidence { runs, allowed, independent, rule, ..Evidence::default() }
}

/// Measures two builds; `None` if what that takes was printed alone.
fn of_builds(args: &GateArgs, files: Files<'_>, rule: Rule) -> Result<Option<Evidence>, Failure> {
    let options = options(args, files)?;
    let changed = options.changed();
    if let Some(evidence) = options.equal(changed.as_ref(), &rule) {
        if !args.builds.plan {
            return Ok(Some(evidence));
        }
        let report = GateReport::of(&evidence);
        return to_stdout(&(conclusion(report.outcome, &report.summary) + "\n")).map(|()| None);
    }
    let planned = Planned::of(options, changed)?;
    let plan = planned.text();
    if args.builds.plan {
        return to_stdout(&plan).map(|()| None);
    }
    let mut progress = Progress::new(args.builds.guests.quiet);
    plan.lines().for_each(|line| progress.say(line));
    planned.measure(rule, &mut progress).map(Some)
}

fn options(args: &GateArgs, files: Files<'_>) -> Result<Options, Failure> {
    let BuildsArgs { guests, module_params, baseline_params, candidate_params, .. } = &args.builds;
    let given = lab::Options::given(files, guests)?;
    let lab = lab::Options { kernels: args.builds.kernel.clone(), ..given };
    check_parameters(&lab, module_params, [baseline_params, candidate_params])?;
    let release = Subject::all(release_builds(args), &guests.agent.agent_file)?;
    release.iter().try_for_each(|subject| subject.check_parameters(module_params))?;
    Ok(Options {
        lab,
        handlers: args.builds.handlers.clone(),
        module_params: module_params.clone(),
        own_params: [baseline_params.clone(), candidate_params.clone()],
        out: args.builds.out.clone(),
        cache: args.builds.cache.clone(),
        changed_only: args.builds.changed_only,
        allowed: args.sides.allow_different.clone(),
        release,
        has_release: !args.release.is_empty() || args.update_baseline.is_some(),
    })
}
