//! The view of a gate's report, and the report as JUnit XML and annotations.

use std::fmt::Write as _;

use super::compare;
use super::document::{Document, Fact, Note, Row, Table, or_dash};
use super::junit::{self, Case, Status};
use super::verdict::{FEWER, GateReport, LeftOut, Reason, quantity};
use crate::recording::Meter;
use crate::text::{listed, phrases, plural};
use crate::verdict::{Outcome, Statistic, Verdict};

type Line = crate::verdict::Line<String>;

/// The view. For a reader who has not made the recordings, all but what matters is folded.
#[must_use]
pub fn document(report: &GateReport) -> Document {
    let is_for_reader = report.left_out.is_some();
    let note = |(what, words): (&str, String)| Note::new(what, words);
    let mut facts: Vec<Fact> = report.parts.iter().flat_map(compare::facts).collect();
    if !report.is_of_equal() {
        facts.push(Fact::new("rule", rule(report)));
    }
    let mut notes = Vec::new();
    match is_for_reader {
        true => {
            facts.extend(report.notes.iter().map(|note| Fact::new("note", note)));
            notes.extend(points(report).into_iter().map(note));
        }
        false => {
            notes.extend(report.notes.iter().map(|note| Note::new("note", note)));
            notes.extend(what_differs(report).map(note));
        }
    }
    Document {
        title: format!("Handler latency gate: {}", report.outcome),
        outcome: report.outcome.to_string(),
        lead: report.sentence().lines().map(str::to_owned).collect(),
        facts,
        tables: vec![figures(report, is_for_reader)],
        notes,
        ..Document::default()
    }
}

/// Every figure with its verdict; those that simply passed are folded, or all.
pub(super) fn figures(report: &GateReport, all_folded: bool) -> Table {
    let row = |line: &Line| {
        Row::of(vec![word(line).to_owned(), line.subject(), line.figure(), line.evidence.clone()])
    };
    let is_folded = |line: &&Line| all_folded || line.verdict == Verdict::Pass && !line.improved;
    let (folded, shown): (Vec<&Line>, Vec<&Line>) = report.lines.iter().partition(is_folded);
    Table {
        rows: shown.into_iter().map(row).collect(),
        summary: match all_folded {
            true => "all figures".to_owned(),
            false => format!("{} passed", folded.len()),
        },
        folded: folded.into_iter().map(row).collect(),
        ..Table::words(["verdict", "handler", "figure", "evidence"], [])
    }
}

/// The report as a table for people; `width` is the terminal's, in columns.
#[must_use]
pub fn text(report: &GateReport, width: Option<u16>) -> String {
    let mut document = document(report);
    let sentence = std::mem::take(&mut document.lead).join("\n");
    // A refusal has several lines.
    let conclusion = conclusion(report.outcome, &sentence);
    let mut conclusion: Vec<Note> = conclusion.lines().map(|line| Note::new("", line)).collect();
    if report.left_out.is_none() {
        document.notes.append(&mut conclusion);
        return document.text(width);
    }
    conclusion.append(&mut document.notes);
    Document { notes: conclusion, ..Document::default() }.text(width)
}

/// The outcome and its sentence, which may begin with the outcome.
#[must_use]
pub fn conclusion(outcome: Outcome, sentence: &str) -> String {
    let lead = format!("{outcome}: ");
    format!("gate: {lead}{}", sentence.strip_prefix(&lead).unwrap_or(sentence))
}

/// What became slower or faster and why, each cause once; a handler without one by its own functions and lines.
fn changes(report: &GateReport) -> impl Iterator<Item = (&'static str, String)> {
    let word = |is_slower: bool| if is_slower { "slower" } else { "faster" };
    let causes = report.causes.iter().map(move |it| (word(it.is_slower()), it.words()));
    let is_left = |reason: &&Reason| {
        let mut reaches = report.causes.iter().flat_map(|cause| &cause.reaches);
        !reaches.any(|it| it.part == reason.part && it.handler == reason.handler)
    };
    let reasons = report.reasons.iter().filter(is_left);
    causes.chain(reasons.map(move |reason| {
        (word(reason.is_slower()), format!("{}: {}", reason.subject(), reason.words()))
    }))
}

/// What the builds register that differs, and what of it the figures do not decide.
fn registered(report: &GateReport) -> impl Iterator<Item = (&'static str, String)> {
    report.registered.iter().flat_map(|registered| {
        let differences = registered.differences().into_iter();
        let undecided = registered.undecided.iter().map(|words| ("undecided", words.clone()));
        differences.map(|(what, hook)| (what, hook.clone())).chain(undecided)
    })
}

/// All that differs beside the table: what is registered, defaults, causes, and the release.
fn what_differs(report: &GateReport) -> impl Iterator<Item = (&'static str, String)> {
    let builds = registered(report).chain(defaults(report)).chain(changes(report));
    builds.chain(beside_release(report))
}

/// The module parameters whose defaults differ.
fn defaults(report: &GateReport) -> Option<(&'static str, String)> {
    (!report.defaults.is_empty()).then(|| ("parameters", phrases(&report.defaults)))
}

/// What the candidate is beside the release, as far as that matters.
fn beside_release(report: &GateReport) -> Vec<(&'static str, String)> {
    let of_release = report.release.iter().flat_map(|release| points(release));
    let said = of_release.filter_map(|(what, words)| match what {
        "slower" => Some(("slower than the release", words)),
        "fail" => Some(("fail beside the release", words)),
        "undecided" => Some(("undecided beside the release", words)),
        _ => None,
    });
    said.collect()
}

/// Whether [`changes`] has the line's handler.
fn is_explained(report: &GateReport, line: &Line) -> bool {
    report.causes.iter().any(|cause| cause.explains(line))
        || report.reasons.iter().any(|reason| reason.subject() == line.subject())
}

/// What a reader has to know, a line each: what changed and why, what is undecided, and what was not judged.
pub(super) fn points(report: &GateReport) -> Vec<(&'static str, String)> {
    let mut points: Vec<(&'static str, String)> = Vec::new();
    points.extend(registered(report));
    points.extend(defaults(report));
    points.extend(changes(report));
    for line in &report.lines {
        // A reason says what calls take, and not how often something happens.
        let is_explained =
            line.statistic.is_none_or(Statistic::is_of_tree) && is_explained(report, line);
        let what = match line.verdict {
            Verdict::Fail if !is_explained || line.budget.is_some() => "fail",
            Verdict::Inconclusive | Verdict::Insufficient | Verdict::Vanished => "undecided",
            Verdict::New => "new",
            Verdict::Pass if line.improved && !is_explained => "faster",
            Verdict::Pass if line.is_of_calls() && line.evidence.starts_with(FEWER) => "calls",
            _ => continue,
        };
        points.push((what, format!("{} {}: {}", line.subject(), line.figure(), line.evidence)));
    }
    points.extend(beside_release(report));
    if let (Some(words), false) = (&report.changed, report.is_of_equal()) {
        points.push(("changed", words.clone()));
    }
    if let Some(registered) = report.registered.as_ref().filter(|it| !it.unknown.is_empty()) {
        points.push(("not known", registered.unknown.join("; ")));
    }
    points.extend(left_out(report));
    points
}

/// What was not judged.
fn left_out(report: &GateReport) -> Vec<(&'static str, String)> {
    let mut points = Vec::new();
    let Some(LeftOut { unreached, not_judged }) = &report.left_out else { return points };
    if !unreached.is_empty() {
        let count = unreached.len();
        let what = match &report.registered {
            Some(_) => format!("hook{}", plural(count)),
            // What is registered is not known.
            None => format!("function{} whose address is stored", plural(count)),
        };
        points.push(("no load reached", format!("{count} {what}: {}", listed(unreached))));
    }
    if !not_judged.is_empty() {
        let why = "not judged (too few calls, beside other threads, or not asked for)";
        points.push((why, not_judged.join("; ")));
    }
    points
}

/// The report as JUnit XML: one suite per handler, one case per figure.
#[must_use]
pub fn junit(report: &GateReport) -> Vec<u8> {
    let case = |line: &Line| Case {
        suite: line.subject(),
        name: line.figure(),
        status: match line.verdict {
            Verdict::Pass => Status::Passed,
            Verdict::Fail => Status::Failed,
            Verdict::Inconclusive | Verdict::Insufficient | Verdict::Vanished => Status::Error,
            Verdict::New => Status::Skipped,
        },
        message: with_reason(report, line),
        system_out: runs_behind(line),
    };
    let mut cases: Vec<Case> = report.lines.iter().map(case).collect();
    cases.extend(beside_release(report).into_iter().map(|(what, words)| {
        let is_undecided = what.starts_with("undecided");
        let status = if is_undecided { Status::Error } else { Status::Failed };
        Case::new("release", what, status, words)
    }));
    let left_out = left_out(report).into_iter();
    cases.extend(left_out.map(|(what, words)| Case::new("gate", what, Status::Skipped, words)));
    if report.is_of_equal() {
        let case = Case::new("gate", "pass", Status::Passed, "");
        cases.push(Case { system_out: report.summary.clone(), ..case });
    } else if is_refused(report) || cases.is_empty() {
        let outcome = report.outcome.to_string();
        cases.push(Case::new("gate", outcome, Status::Error, &report.summary));
    }
    junit::document("profiler gate", &cases)
}

/// Workflow commands of GitHub Actions, one per line: errors for what made handlers slower, for other failed figures and for a
/// refusal, warnings for undecided ones, notices for new or faster ones.
#[must_use]
pub fn annotations(report: &GateReport) -> String {
    let mut text = String::new();
    let mut add = |level: &str, title: &str, message: &str| {
        let _ =
            writeln!(text, "::{level} title={}::{}", escape_property(title), escape_data(message));
    };
    if is_refused(report) {
        add("error", &format!("latency gate: {}", report.outcome), &report.summary);
    }
    for cause in &report.causes {
        let (level, word) =
            if cause.is_slower() { ("error", "slower") } else { ("notice", "faster") };
        add(level, &format!("latency gate: {word}: {}", cause.function), &cause.words());
    }
    for (what, words) in beside_release(report) {
        let level = if what.starts_with("undecided") { "warning" } else { "error" };
        add(level, &format!("latency gate: {what}"), &words);
    }
    for line in &report.lines {
        let has_cause = || report.causes.iter().any(|cause| cause.explains(line));
        let level = match line.verdict {
            Verdict::Fail | Verdict::Pass if line.budget.is_none() && has_cause() => continue,
            Verdict::Fail => "error",
            Verdict::Inconclusive | Verdict::Insufficient | Verdict::Vanished => "warning",
            Verdict::New => "notice",
            Verdict::Pass if line.improved => "notice",
            Verdict::Pass => continue,
        };
        let title = format!("{}: {} {}", word(line), line.subject(), line.figure());
        add(level, &title, &with_reason(report, line));
    }
    for (what, words) in left_out(report) {
        add("notice", "latency gate", &format!("{what}: {words}"));
    }
    text
}

/// Whether nothing was judged.
fn is_refused(report: &GateReport) -> bool {
    matches!(report.outcome, Outcome::NotComparable | Outcome::TooFewRuns)
}

/// The evidence, with what changed if the line failed.
fn with_reason(report: &GateReport, line: &Line) -> String {
    let is_its = |reason: &&Reason| reason.subject() == line.subject();
    match report.reasons.iter().find(is_its) {
        Some(reason) if line.verdict == Verdict::Fail => {
            format!("{}; {}", line.evidence, reason.words())
        }
        _ => line.evidence.clone(),
    }
}

/// Escapes the message of a workflow command, which ends with its line and in which `%` starts an escape.
fn escape_data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property of a workflow command, which `:` and `,` end, too.
fn escape_property(text: &str) -> String {
    escape_data(text).replace(':', "%3A").replace(',', "%2C")
}

pub(super) fn word(line: &Line) -> &'static str {
    if line.improved { "faster" } else { line.verdict.name() }
}

pub(super) fn rule(report: &GateReport) -> String {
    let counted = report.lines.iter().any(|line| line.meter == Meter::Exact);
    let of_counts = "counted calls: the median change over placements";
    if counted && report.comparisons == 0 {
        return of_counts.to_owned();
    }
    format!(
        "{} comparison{} together at alpha {} (Holm), bounds at {:.0} %{}",
        report.comparisons,
        plural(report.comparisons),
        report.alpha,
        report.confidence * 100.0,
        if counted { format!("; {of_counts}") } else { String::new() }
    )
}

fn runs_behind(line: &Line) -> String {
    let Some(change) = &line.change else { return String::new() };
    let list = |runs: &[Option<f64>]| {
        let shown = |run: &Option<f64>| or_dash(run.map(|value| quantity(value, change)));
        runs.iter().map(shown).collect::<Vec<_>>().join(", ")
    };
    if line.statistic.is_none() {
        return String::new();
    }
    format!(
        "{}\nbaseline runs: {}\ncandidate runs: {}",
        line.evidence,
        list(&change.base_runs),
        list(&change.candidate_runs)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_named_once() {
        let refused = conclusion(Outcome::NotComparable, "not comparable: the runs differ");
        assert_eq!(refused, "gate: not comparable: the runs differ");
        assert_eq!(conclusion(Outcome::Pass, "4 handlers"), "gate: pass: 4 handlers");
    }

    #[test]
    fn workflow_commands_are_escaped() {
        assert_eq!(escape_data("5 %\r\n::error::x"), "5 %25%0D%0A::error::x");
        assert_eq!(escape_property("a:b, 1 %"), "a%3Ab%2C 1 %25");
    }
}
