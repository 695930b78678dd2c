//! `profiler gate`: decides whether the candidate is slower than it may be.

pub(super) mod builds;
mod output;

use super::sides::Files;
use crate::atomic_file::OutputFile;
use crate::cli::gate::GateArgs;
use crate::error::{Failure, exit};
use crate::export::verdict::GateReport;
use crate::recording::Series;
use crate::verdict::{self, Outcome, Refusal, Rule, Run, Sides};

use output::Outputs;

/// See the [command line](GateArgs). All outputs are written whatever the outcome, except the new
/// baseline, which needs a pass.
///
/// # Errors
/// With the outcome's exit code unless it is a pass; or if a file is not a valid recording or rule, or
/// an output cannot be written.
pub fn run(args: &GateArgs) -> Result<(), Failure> {
    let rule = rule(args)?;
    if !args.builds.old.is_empty() {
        return builds::run(args, rule);
    }
    let files = Files::of(&args.sides, rule.budgets.is_empty())?;
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
    let report = judged(sides, &rule);
    outputs.write(args, &report)?;
    conclude(args, &report, new_baseline, candidate)
}

fn judged(sides: Result<Sides<'_>, Refusal>, rule: &Rule) -> GateReport {
    let gate = verdict::gate(sides, rule);
    let code = exit_code(gate.conclusion.outcome());
    GateReport::of(gate, code)
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
    let text = format!("gate: {}: {}{kept}", report.outcome, report.summary);
    Err(Failure::new(report.exit_code, text))
}

fn exit_code(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Pass => exit::OK,
        Outcome::Fail => exit::REGRESSION,
        Outcome::Inconclusive => exit::INCONCLUSIVE,
        Outcome::NotComparable => exit::NOT_COMPARABLE,
        Outcome::TooFewRuns => exit::TOO_FEW_RUNS,
    }
}

/// The rule of the file, overridden by the command line.
fn rule(args: &GateArgs) -> Result<Rule, Failure> {
    let mut rule = match &args.config {
        Some(path) => {
            Rule::read(path).map_err(|error| Failure::new(exit::BAD_INPUT, error.to_string()))?
        }
        None => Rule::default(),
    };
    if let Some(limits) = args.max_regression {
        rule.limits = Some(limits);
    }
    if let Some(share) = args.max_loss {
        rule.max_loss = share;
    }
    if let Some(floor) = args.floor {
        rule.floor = Some(floor);
    }
    if let Some(alpha) = args.alpha {
        rule.alpha = alpha;
    }
    rule.allow_vanished |= args.allow_vanished;
    rule.budgets.extend(args.budget.iter().cloned());
    Ok(rule)
}
