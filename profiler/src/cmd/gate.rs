//! `profiler gate`: whether the candidate is slower than it may be.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::{report::stdout_width, sides::Files, to_stdout};
use crate::atomic_file::OutputFile;
use crate::cli::compare::Format;
use crate::cli::gate::GateArgs;
use crate::error::{Failure, exit};
use crate::export::{gate as export, json::indented};
use crate::profile::Series;
use crate::verdict::{self, GateReport, Outcome, Rule, Run, Sides};

/// Judges: see the [command line](GateArgs). All outputs are written whatever the outcome, but for the
/// new baseline, which takes a pass.
///
/// # Errors
/// With the outcome's exit code unless it is a pass; or if a file is not what it should be, or an
/// output cannot be written.
pub fn run(args: &GateArgs) -> Result<(), Failure> {
    let rule = rule(args)?;
    let files = Files::of(&args.sides, rule.budgets.is_empty())?;
    // Before reading: what cannot be written is known before there is a verdict to lose.
    let open = |path: &Option<PathBuf>| path.as_deref().map(OutputFile::open).transpose();
    let (json, junit, markdown) = (open(&args.json)?, open(&args.junit)?, open(&args.markdown)?);
    let new_baseline = open(&args.update_baseline)?;
    let (base, candidate) = files.read()?;
    let accepted: Vec<Run> = if new_baseline.is_some() { candidate.clone() } else { Vec::new() };
    let sides = if base.is_empty() {
        Sides::of_candidate(candidate)
    } else {
        let allowed = &args.sides.allow_different;
        Sides::new(base, candidate, allowed, args.sides.independent_runs)
    };
    let report = verdict::gate(sides, &rule);

    if let Some(file) = json {
        file.commit(&indented(&report))?;
    }
    if let Some(file) = junit {
        file.commit(&export::junit(&report))?;
    }
    if let Some(file) = markdown {
        file.commit(export::markdown(&report).as_bytes())?;
    }
    show(args, &report)?;
    if let Some(path) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) {
        append(Path::new(&path), &export::markdown(&report))?;
    }
    if report.outcome == Outcome::Pass {
        if let Some(file) = new_baseline {
            let runs = accepted.into_iter().map(|run| run.profile).collect();
            file.commit(&Series::new("baseline", runs).to_json())?;
        }
        return Ok(());
    }
    let kept = match &args.update_baseline {
        Some(path) => format!("; {} stays as it was", path.display()),
        None => String::new(),
    };
    Err(Failure::new(
        report.exit_code,
        format!("gate: {}: {}{kept}", report.outcome, report.summary),
    ))
}

/// The rule of the file, with what the command line says over it.
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
    if let Some(ns) = args.floor {
        rule.floor_ns = Some(ns);
    }
    if let Some(alpha) = args.alpha {
        rule.alpha = alpha;
    }
    rule.allow_vanished |= args.allow_vanished;
    rule.budgets.extend(args.budget.iter().cloned());
    Ok(rule)
}

fn show(args: &GateArgs, report: &GateReport) -> Result<(), Failure> {
    let on_github = std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true");
    match args.format {
        Format::Json => to_stdout(&String::from_utf8_lossy(&indented(report))),
        Format::Markdown => to_stdout(&export::markdown(report)),
        Format::Text => {
            let mut text = export::text(report, stdout_width());
            if on_github || args.annotations {
                text.push_str(&export::annotations(report));
            }
            to_stdout(&text)
        }
    }
}

/// The summary of a job is what its steps append to one file.
fn append(path: &Path, text: &str) -> Result<(), Failure> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| {
            let text = format!(
                "cannot append to {}, which GITHUB_STEP_SUMMARY names: {error}: unset it or make it writable",
                path.display()
            );
            Failure::new(exit::BAD_OUTPUT, text)
        })
}
