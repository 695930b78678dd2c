//! The whole gate: runs and a rule in, a report out.

use super::change::CONFIDENCE;
use super::judge::{self, Terms};
use super::report::{GATE_SCHEMA, REPORT_VERSION};
use super::{
    Budget, ChangeRecord, GateReport, Limit, Line, Outcome, Part, PartRecord, Refusal, Rule, Run,
    Sides, Statistic, Verdict, changes,
};
use crate::profile::{Clock, Tool};
use crate::stats;

/// One figure that is to be judged, before it is.
struct Pending {
    record: ChangeRecord,
    terms: Terms,
    /// Index of the part.
    part: usize,
}

/// Judges the candidate against the baseline and against the rule's budgets.
#[must_use]
pub fn gate(sides: Result<Sides, Refusal>, rule: &Rule) -> GateReport {
    let mut report = GateReport {
        schema: GATE_SCHEMA.to_owned(),
        version: REPORT_VERSION,
        tool: Tool::this(),
        outcome: Outcome::Pass,
        exit_code: 0,
        summary: String::new(),
        alpha: rule.alpha,
        confidence: CONFIDENCE,
        comparisons: 0,
        parts: Vec::new(),
        notes: Vec::new(),
        lines: Vec::new(),
    };
    let sides = match sides {
        Ok(sides) => sides,
        Err(refusal) => return conclude(report, Outcome::NotComparable, refusal.to_string()),
    };
    report.parts = sides.parts.iter().map(PartRecord::of).collect();
    report.notes = notes(&sides, rule);

    let mut pending = Vec::new();
    let with_baseline = sides.parts.iter().enumerate().filter(|(_, part)| !part.base.is_empty());
    for (number, part) in with_baseline {
        for record in changes(part) {
            sort(record, part, number, rule, &mut pending, &mut report.lines);
        }
    }
    report.comparisons = pending.len();
    if let Some(text) = too_few_runs(&sides, &pending, rule) {
        return conclude(report, Outcome::TooFewRuns, text);
    }
    report.lines.extend(judged(pending));
    report.lines.extend(rule.budgets.iter().flat_map(|budget| budget_lines(budget, &sides, rule)));
    // Stable: within a kind, in the order of the handlers.
    report.lines.sort_by_key(|line| match line.verdict {
        Verdict::Fail => 0,
        Verdict::Vanished | Verdict::Inconclusive => 1,
        Verdict::Insufficient => 2,
        Verdict::Pass | Verdict::New => 3,
    });
    let (outcome, summary) = sum_up(&report.lines, rule);
    conclude(report, outcome, summary)
}

fn conclude(mut report: GateReport, outcome: Outcome, summary: String) -> GateReport {
    report.outcome = outcome;
    report.exit_code = outcome.exit_code();
    report.summary = summary;
    report
}

/// Puts one figure where it belongs: to be judged, or said at once.
fn sort(
    record: ChangeRecord,
    part: &Part,
    number: usize,
    rule: &Rule,
    pending: &mut Vec<Pending>,
    lines: &mut Vec<Line>,
) {
    if record.statistic == Statistic::Count {
        // One line for the handler as a whole.
        if let Some((verdict, evidence)) = presence(&record) {
            lines.push(Line { statistic: None, ..line(record, verdict, evidence) });
        }
        return;
    }
    if presence(&record).is_some() {
        return;
    }
    let (clock, in_turns) = (part.clock(), part.design.is_interleaved());
    let Limit::Share(share) = rule.limit(&record.handler, record.statistic, clock, in_turns) else {
        return;
    };
    let terms = Terms {
        share,
        floor_ns: rule.floor_ns(&record.handler, clock),
        max_loss: rule.max_loss,
        alpha: rule.alpha,
    };
    match judge::insufficient(&record) {
        Some(evidence) => {
            let limits = limits(&record, &terms);
            lines.push(Line {
                limit_percent: limits.0,
                floor_ns: limits.1,
                ..line(record, Verdict::Insufficient, evidence)
            });
        }
        None => pending.push(Pending { record, terms, part: number }),
    }
}

/// What is to be said of a handler that only one side has, or that only one side called.
fn presence(record: &ChangeRecord) -> Option<(Verdict, String)> {
    let (base, candidate) = (record.base_calls, record.candidate_calls);
    match (base.total > 0, candidate.total > 0) {
        (true, true) => None,
        (true, false) if !candidate.known => Some((
            Verdict::Vanished,
            format!(
                "{} calls in the baseline, and the candidate has no such handler: renamed, inlined or no \
                 longer measured",
                base.total
            ),
        )),
        (true, false) => Some((
            Verdict::Vanished,
            format!("{} calls in the baseline, and none in the candidate", base.total),
        )),
        (false, true) => Some((
            Verdict::New,
            format!("{} calls in the candidate, and none in the baseline", candidate.total),
        )),
        (false, false) => Some((
            Verdict::Insufficient,
            "no call on either side: the load does not reach it".to_owned(),
        )),
    }
}

fn line(record: ChangeRecord, verdict: Verdict, evidence: String) -> Line {
    Line {
        verdict,
        improved: false,
        evidence,
        part: record.part.clone(),
        handler: record.handler.clone(),
        statistic: Some(record.statistic),
        budget: None,
        limit_percent: None,
        floor_ns: None,
        p_adjusted: None,
        change: Some(record),
    }
}

fn limits(record: &ChangeRecord, terms: &Terms) -> (Option<f64>, Option<f64>) {
    (Some(terms.share * 100.0), Some(terms.floor_ns + record.resolution))
}

/// Why none of the comparisons could fail, if so.
fn too_few_runs(sides: &Sides, pending: &[Pending], rule: &Rule) -> Option<String> {
    let comparisons = pending.len().max(1);
    let level = rule.alpha / comparisons as f64;
    // A hair more, for the chance is a quotient and so is the level.
    let hopeless = |part: &&Part| part.design.smallest_p() > level * (1.0 + 1e-9);
    let has_comparisons =
        |number: usize| pending.is_empty() || pending.iter().any(|p| p.part == number);
    let part = sides
        .parts
        .iter()
        .enumerate()
        .filter(|(number, _)| has_comparisons(*number))
        .map(|(_, part)| part)
        .filter(|part| !part.base.is_empty())
        .find(hopeless)?;
    let name = part.name.as_ref().map_or(String::new(), |name| format!("{name}: "));
    Some(format!(
        "too few runs to find any regression, however large: {name}{} can show a chance of {:.5} at best, \
         and {comparisons} comparison{} at alpha {} need {level:.5}: measure {}",
        part.design.words(),
        part.design.smallest_p(),
        if comparisons == 1 { "" } else { "s" },
        rule.alpha,
        part.design.enough(level),
    ))
}

fn judged(pending: Vec<Pending>) -> Vec<Line> {
    let chances = |of: fn(&ChangeRecord) -> Option<f64>| {
        let chances: Vec<f64> = pending.iter().map(|p| of(&p.record).unwrap_or(1.0)).collect();
        stats::adjust(&chances)
    };
    let slower = chances(|record| record.p_slower);
    let faster = chances(|record| record.p_faster);
    pending
        .into_iter()
        .zip(slower.into_iter().zip(faster))
        .map(|(Pending { record, terms, .. }, (slower, faster))| {
            let (verdict, improved, evidence) = judge::judge(&record, &terms, slower, faster);
            let (limit_percent, floor_ns) = limits(&record, &terms);
            Line {
                improved,
                limit_percent,
                floor_ns,
                p_adjusted: Some(slower),
                ..line(record, verdict, evidence)
            }
        })
        .collect()
}

/// Lines of one budget: one for each handler of the candidate that it matches.
fn budget_lines(budget: &Budget, sides: &Sides, rule: &Rule) -> Vec<Line> {
    let mut lines = Vec::new();
    for part in &sides.parts {
        let mut seen: Vec<(Option<&str>, &str)> = Vec::new();
        for handler in part.candidate.iter().flat_map(|run| &run.profile.handlers) {
            let key = (handler.module.as_deref(), handler.name.as_str());
            if !budget.pattern.matches(&handler.name) || seen.contains(&key) {
                continue;
            }
            seen.push(key);
            let (verdict, evidence) = spent(budget, &part.candidate, key, rule);
            lines.push(Line {
                verdict,
                improved: false,
                evidence,
                part: part.name.clone(),
                handler: handler.name.clone(),
                statistic: Some(budget.statistic),
                budget: Some(budget.text.clone()),
                limit_percent: None,
                floor_ns: None,
                p_adjusted: None,
                change: None,
            });
        }
    }
    if lines.is_empty() {
        lines.push(Line {
            verdict: Verdict::Inconclusive,
            improved: false,
            evidence: format!("no handler of the candidate matches `{}`", budget.pattern),
            part: None,
            handler: budget.pattern.to_string(),
            statistic: Some(budget.statistic),
            budget: Some(budget.text.clone()),
            limit_percent: None,
            floor_ns: None,
            p_adjusted: None,
            change: None,
        });
    }
    lines
}

/// Whether a handler keeps a budget.
fn spent(
    budget: &Budget,
    runs: &[Run],
    (module, name): (Option<&str>, &str),
    rule: &Rule,
) -> (Verdict, String) {
    let statistic = budget.statistic;
    let (mut values, mut fewest, mut lost_share) = (Vec::new(), u64::MAX, 0.0_f64);
    for run in runs {
        let handler = run
            .profile
            .handlers
            .iter()
            .find(|handler| handler.name == name && handler.module.as_deref() == module);
        fewest = fewest.min(handler.map_or(0, |handler| handler.count));
        if let Some(handler) = handler {
            let lost = handler.losses.unmeasured() as f64;
            if lost > 0.0 {
                lost_share = lost_share.max(lost / (lost + handler.count as f64));
            }
            values.extend(statistic.of(handler).map(|observed| observed.value));
        }
    }
    let needed = statistic.calls_needed();
    if fewest < needed {
        let text = format!("{statistic} needs {needed} calls in every run, and a run has {fewest}");
        return (Verdict::Insufficient, text);
    }
    let below = judge::ns(budget.below_ns);
    let Some((value, bounds)) = stats::level(&values, CONFIDENCE) else {
        return (Verdict::Insufficient, "it has no call".to_owned());
    };
    let shown = judge::ns(value);
    if lost_share > rule.max_loss {
        let text = format!(
            "{shown}, and {} of the calls of a run were lost, where {} may be",
            judge::percent(lost_share),
            judge::percent(rule.max_loss)
        );
        return (Verdict::Inconclusive, text);
    }
    let runs = match values.len() {
        1 => "one run".to_owned(),
        count => format!("{count} runs"),
    };
    let (lower, upper) = bounds.map_or((value, value), |bounds| (bounds.lower, bounds.upper));
    if upper < budget.below_ns {
        (Verdict::Pass, format!("{shown}, at most {}, below {below}; {runs}", judge::ns(upper)))
    } else if lower >= budget.below_ns {
        (
            Verdict::Fail,
            format!("{shown}, at least {}, not below {below}; {runs}", judge::ns(lower)),
        )
    } else {
        let text = format!(
            "{shown}, between {} and {}, and the budget is {below}; {runs}",
            judge::ns(lower),
            judge::ns(upper)
        );
        (Verdict::Inconclusive, text)
    }
}

fn notes(sides: &Sides, rule: &Rule) -> Vec<String> {
    let mut notes = sides.notes.clone();
    for part in &sides.parts {
        let name = part.name.as_ref().map_or(String::new(), |name| format!("{name}: "));
        let record = PartRecord::of(part);
        if !record.base.modules.is_empty() && record.base.modules == record.candidate.modules {
            notes.push(format!("{name}both sides are of the same build"));
        }
        if part.clock() == Clock::Wall && !part.design.is_interleaved() {
            notes.push(format!(
                "{name}the sides did not take turns on the wall clock, so a drift of the machine looks like \
                 a change: the limits are doubled unless they were given"
            ));
        }
    }
    let names = || {
        let runs = sides.parts.iter().flat_map(|part| part.base.iter().chain(&part.candidate));
        runs.flat_map(|run| &run.profile.handlers).map(|handler| handler.name.as_str())
    };
    for handler in &rule.handlers {
        if !names().any(|name| handler.pattern.matches(name)) {
            notes.push(format!("no handler matches `{}` of the rule file", handler.pattern));
        }
    }
    notes
}

fn sum_up(lines: &[Line], rule: &Rule) -> (Outcome, String) {
    let count = |verdict: Verdict| lines.iter().filter(|line| line.verdict == verdict).count();
    let vanished = if rule.allow_vanished { 0 } else { count(Verdict::Vanished) };
    let undecided = count(Verdict::Inconclusive) + count(Verdict::Insufficient) + vanished;
    let passed = count(Verdict::Pass);
    let improved = lines.iter().filter(|line| line.improved).count();
    let failed: Vec<&Line> = lines.iter().filter(|line| line.verdict == Verdict::Fail).collect();
    let mut tail = format!("{passed} passed");
    if improved > 0 {
        tail.push_str(&format!(" ({improved} faster)"));
    }
    for (verdict, what) in [(Verdict::New, "new"), (Verdict::Vanished, "vanished")] {
        if count(verdict) > 0 {
            tail.push_str(&format!(", {} {what}", count(verdict)));
        }
    }
    if let Some(first) = failed.first() {
        let more = match failed.len() {
            1 => String::new(),
            all => format!(" and {} more", all - 1),
        };
        let summary = format!(
            "{} {}{more} failed: {}; {undecided} undecided, {tail}",
            first.subject(),
            first.figure(),
            first.evidence
        );
        return (Outcome::Fail, summary);
    }
    if undecided > 0 {
        return (Outcome::Inconclusive, format!("none failed, {undecided} undecided, {tail}"));
    }
    if passed == 0 {
        return (Outcome::Inconclusive, "nothing was judged: every limit is off".to_owned());
    }
    (Outcome::Pass, tail)
}
