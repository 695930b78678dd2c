//! `profiler gate`: decides whether the candidate is slower than it may be.

mod output;
mod rule;

use super::{sides::Files, to_stdout};
use crate::atomic_file::OutputFile;
use crate::cli::gate::{BuildsArgs, GateArgs};
use crate::error::{Failure, exit};
use crate::export::gate::conclusion;
use crate::export::verdict::GateReport;
use crate::lab::gate::{Options, Planned};
use crate::prepare::check_parameters;
use crate::progress::Progress;
use crate::recording::Series;
use crate::verdict::{self, Outcome, Rule, Run, Sides};

use output::Outputs;
use rule::rule;

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
        if !files.are_modules()? {
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

/// Judges recordings.
fn of_recordings(args: &GateArgs, files: &Files, rule: &Rule) -> Result<(), Failure> {
    if let Some(option) = args.builds.option() {
        let text = format!(
            "{option} is for two builds of a driver: name their .ko files in place of recordings"
        );
        return Err(Failure::new(exit::USAGE, text));
    }
    // Opened before anything is judged, so that no decision is lost to an output that cannot be written.
    let outputs = Outputs::open(args)?;
    let new_baseline = args.update_baseline.as_deref().map(OutputFile::open).transpose()?;
    let (base, candidate) = files.read()?;
    let sides = if base.is_empty() {
        Sides::of_candidate(&candidate)
    } else {
        let allowed = &args.sides.allow_different;
        Sides::new(&base, &candidate, allowed, args.sides.independent_runs)
    };
    let report = GateReport::of(verdict::gate(sides, rule));
    outputs.write(args, &report)?;
    conclude(args, &report, new_baseline, candidate)
}

/// Measures two builds, and judges them.
fn of_builds(args: &GateArgs, rule: Rule) -> Result<(), Failure> {
    let BuildsArgs { old, new, module_params, baseline_params, candidate_params, .. } =
        &args.builds;
    for (files, own) in [(old, baseline_params), (new, candidate_params)] {
        let given = format!("{module_params} {own}");
        files.iter().try_for_each(|file| check_parameters(file, &given))?;
    }
    let options = options(&args.builds);
    let changed = options.changed();
    // A budget and a new baseline need figures.
    if let Some(equal) = changed.as_ref().filter(|changed| changed.is_nothing())
        && rule.budgets.is_empty()
        && baseline_params == candidate_params
        && args.update_baseline.is_none()
    {
        let report = GateReport::of_equal(equal.words(), rule.alpha);
        return match args.builds.plan {
            true => to_stdout(&(conclusion(report.outcome, &report.summary) + "\n")),
            false => Outputs::open(args)?.write(args, &report),
        };
    }
    let planned = Planned::of(options, changed)?;
    if args.builds.plan {
        return to_stdout(&planned.text());
    }
    let outputs = Outputs::open(args)?;
    let new_baseline = args.update_baseline.as_deref().map(OutputFile::open).transpose()?;
    let mut progress = Progress::new(args.builds.quiet);
    for line in planned.text().lines() {
        progress.say(line);
    }
    let (report, candidate) = planned.decide(&args.sides.allow_different, rule, &mut progress)?;
    outputs.write(args, &report)?;
    conclude(args, &report, new_baseline, candidate)
}

fn options(args: &BuildsArgs) -> Options {
    Options {
        baseline: args.old.clone(),
        candidate: args.new.clone(),
        kernels: args.kernel.clone(),
        handlers: args.handlers.clone(),
        module_params: args.module_params.clone(),
        own_params: [args.baseline_params.clone(), args.candidate_params.clone()],
        out: args.out.clone(),
        cache: args.cache.clone(),
        logs: args.logs.clone(),
        changed_only: args.changed_only,
    }
}

/// Writes the new baseline on a pass; else fails with the outcome.
fn conclude(
    args: &GateArgs,
    report: &GateReport,
    new_baseline: Option<OutputFile>,
    candidate: Vec<Run>,
) -> Result<(), Failure> {
    if report.outcome == Outcome::Pass {
        if let Some(file) = new_baseline {
            let runs = candidate.into_iter().map(|run| run.recording).collect();
            file.commit(&Series::new("baseline", runs).to_json())?;
        }
        return Ok(());
    }
    let kept = match &args.update_baseline {
        Some(path) => format!("; {} is unchanged", path.display()),
        None => String::new(),
    };
    let text = conclusion(report.outcome, &report.sentence()) + &kept;
    Err(Failure::new(report.exit_code, text))
}
