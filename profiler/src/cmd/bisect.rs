//! `profiler bisect`: the first commit of a driver that made a handler slower.

use std::path::Path;

use super::to_stdout;
use crate::bisect::{self, Judged, Options, Verdict, text::text};
use crate::cli::bisect::BisectArgs;
use crate::error::{Failure, exit};
use crate::export::cell::clean;
use crate::export::verdict::GateReport;
use crate::lab::gate::{self, Planned};
use crate::progress::Progress;
use crate::verdict::{Outcome, Rule};

/// See the [command line](BisectArgs).
///
/// # Errors
/// If the revisions cannot be built and measured, or no single commit is found.
pub fn run(args: &BisectArgs) -> Result<(), Failure> {
    let options = Options {
        repository: args.repository.clone(),
        good: args.good.clone(),
        bad: args.bad.clone(),
        build: args.build.clone(),
        module: args.module.clone(),
        start_over: args.start_over,
    };
    let mut measuring = Progress::new(args.quiet);
    let steps = Progress::new(args.quiet);
    let mut measure = |good: &Path, candidate: &Path| judge(args, good, candidate, &mut measuring);
    let found = bisect::run(&options, &mut measure, &mut |line| steps.say(&clean(line)))?;
    to_stdout(&text(&found))?;
    match found.first.len() {
        1 => Ok(()),
        several => {
            let text =
                format!("the first slower commit is one of {several}: not all can be measured");
            Err(Failure::new(exit::INCONCLUSIVE, text))
        }
    }
}

/// Measures two builds. What is wrong with the candidate leaves it out; what is wrong with this machine ends all.
fn judge(
    args: &BisectArgs,
    good: &Path,
    candidate: &Path,
    progress: &mut Progress,
) -> Result<Judged, Failure> {
    let builds = gate::Options {
        baseline: vec![good.to_owned()],
        candidate: vec![candidate.to_owned()],
        kernels: args.kernel.iter().cloned().collect(),
        handlers: args.handlers.clone(),
        module_params: args.module_params.clone(),
        own_params: [String::new(), String::new()],
        out: None,
        cache: None,
        logs: args.logs.clone(),
        changed_only: false,
    };
    let rule = Rule { limits: args.max_regression, ..Rule::default() };
    let changed = builds.changed();
    if let Some(equal) = changed.as_ref().filter(|changed| changed.is_nothing()) {
        return Ok(judged(&GateReport::of_equal(equal.words(), rule.alpha)));
    }
    let measured = Planned::of(builds, changed)
        .and_then(|planned| planned.decide(&[], rule, Default::default(), progress));
    match measured {
        Ok(decision) => Ok(judged(&decision.report)),
        Err(failure) if is_of_build(failure.code) => {
            Ok(Judged { verdict: Verdict::Unknown, words: failure.message })
        }
        Err(failure) => Err(failure),
    }
}

/// Whether another build may fare better.
fn is_of_build(code: u8) -> bool {
    [exit::BAD_INPUT, exit::NO_TARGET, exit::LOAD_FAILED, exit::NO_HITS, exit::LAB_FAILED]
        .contains(&code)
}

fn judged(report: &GateReport) -> Judged {
    let verdict = match report.outcome {
        Outcome::Pass => Verdict::Good,
        Outcome::Fail => Verdict::Bad,
        _ => Verdict::Unknown,
    };
    let slower = report.reasons.iter().filter(|reason| reason.is_slower());
    let mut words: Vec<String> =
        slower.map(|reason| format!("{}: {}", reason.subject(), reason.words())).collect();
    if verdict != Verdict::Bad || words.is_empty() {
        words = vec![report.headline()];
    }
    Judged { verdict, words: words.join("\n") }
}
