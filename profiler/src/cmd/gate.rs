//! `profiler gate`: decides whether the candidate is slower than it may be.

mod output;

use std::path::PathBuf;

use super::sides::{Files, check_parameters, is_build, read};
use super::to_stdout;
use crate::cli::gate::{BuildsArgs, GateArgs};
use crate::error::{Failure, bail, exit};
use crate::export::gate::conclusion;
use crate::export::verdict::GateReport;
use crate::lab;
use crate::lab::gate::{Decision, Options, Planned};
use crate::lab::subject::{Subject, agent_beside};
use crate::progress::Progress;
use crate::verdict::{self, HookReport, Rule, Run, Sides};

use output::Outputs;

/// See the [command line](GateArgs). All outputs are written whatever the outcome, except the new
/// baseline, which needs a pass.
///
/// # Errors
/// With the outcome's exit code unless it is a pass; or if a file is not a valid recording or rule, or
/// an output cannot be written.
pub fn run(mut args: GateArgs) -> Result<(), Failure> {
    let rule = rule(&args)?;
    if args.builds.old.is_empty() {
        let files = Files::of(&args.sides, rule.budgets.is_empty())?;
        if !files.are_builds()? {
            return of_recordings(&args, &files, &rule);
        }
        if files.base.is_empty() {
            let text = "a build is judged beside another: name the baseline's .ko file, --, and the candidate's";
            return Err(Failure::new(exit::USAGE, text));
        }
        (args.builds.old, args.builds.new) = (files.base, files.candidate);
    }
    of_builds(&args, rule)
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
    })
}

/// Judges recordings.
fn of_recordings(args: &GateArgs, files: &Files, rule: &Rule) -> Result<(), Failure> {
    if let Some(option) = args.builds.option() {
        bail!(
            USAGE,
            "{option} is for two builds: name .ko files or `run: COMMAND` in place of recordings"
        );
    }
    let outputs = Outputs::open(args)?;
    let (base, candidate) = files.read()?;
    let sides = if base.is_empty() {
        Sides::of_candidate(&candidate)
    } else {
        let allowed = &args.sides.allow_different;
        Sides::new(&base, &candidate, allowed, args.sides.independent_runs)
    };
    let mut report = GateReport::of(verdict::gate(sides, rule));
    let [old, new] =
        [&base, &candidate].map(|runs| runs.iter().map(|run| &run.recording).collect::<Vec<_>>());
    // Of several kernels each has its own.
    if let Some(registered) = HookReport::of(&old, &new, rule, &|_| true, &|_| None)
        && (!registered.is_same() || rule.require_reached)
    {
        report = report.with_hooks(registered, rule);
    }
    let (builds, release) = release(args)?;
    if !builds.is_empty() {
        let text = "the release is a build, and what is judged are recordings: name recordings of the release";
        return Err(Failure::new(exit::USAGE, text));
    }
    if let Some(release) = release {
        report = report.beside(judged(args, &release, &candidate, rule));
    }
    outputs.write(args, &report, candidate)
}

/// Measures two builds, and judges them.
fn of_builds(args: &GateArgs, rule: Rule) -> Result<(), Failure> {
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
        return match args.builds.plan {
            true => to_stdout(&(conclusion(report.outcome, &report.summary) + "\n")),
            false => Outputs::open(args)?.write(args, &report, Vec::new()),
        };
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
        return to_stdout(&plan);
    }
    let outputs = Outputs::open(args)?;
    let mut progress = Progress::new(args.builds.guests.quiet);
    plan.lines().for_each(|line| progress.say(line));
    let allowed = &args.sides.allow_different;
    let Decision { mut report, candidate, known, rule } =
        planned.decide(allowed, rule, Default::default(), &mut progress)?;
    if let Some(release) = &release {
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
    outputs.write(args, &report, candidate)
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
    let options = Options {
        lab: lab::Options { baseline, ..options.lab },
        out: None,
        own_params: [String::new(), candidate_params.clone()],
        ..options
    };
    let changed = options.changed();
    Planned::of(options, changed)
}

/// The candidate beside recordings of the release.
fn judged(args: &GateArgs, release: &[Run], candidate: &[Run], rule: &Rule) -> GateReport {
    let sides =
        Sides::new(release, candidate, &args.sides.allow_different, args.sides.independent_runs);
    GateReport::of(verdict::gate(sides, &rule.beside_release(args.release_limit)))
}

fn options(gate: &GateArgs) -> Result<Options, Failure> {
    let args = &gate.builds;
    let baseline = Subject::all(&args.old, &args.guests.agent.agent_file)?;
    let candidate = Subject::all(&args.new, &args.guests.agent.agent_file)?;
    let has_command = baseline.iter().chain(&candidate).any(Subject::is_command);
    let lab = lab::Options {
        baseline,
        candidate,
        kernels: args.kernel.clone(),
        agent: agent_beside(&args.guests.agent, has_command)?,
        logs: args.guests.logs.clone(),
        ..lab::Options::counted()
    };
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
