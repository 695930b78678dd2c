//! The view of a gate's report, and the report as JUnit XML and annotations.

use quick_junit::{TestCase, TestCaseStatus};

use super::compare;
use super::document::{Document, Fact, Note, Row, Table, or_dash};
use super::junit;
use super::verdict::{Cause, FEWER, GateReport, LeftOut, quantity};
use crate::recording::Meter;
use crate::text::{listed, phrases, plural};
use crate::verdict::{Outcome, Statistic, Verdict};

type Line = crate::verdict::Line<String>;

/// The view. For a reader who has not made the recordings, all but what matters is folded.
pub fn document(report: &GateReport) -> Document {
    let is_for_reader = report.left_out.is_some();
    let mut facts: Vec<Fact> = report.parts.iter().flat_map(compare::facts).collect();
    if !report.is_of_equal() {
        facts.push(Fact::new("rule", rule(report)));
    }
    let mut notes = Vec::new();
    match is_for_reader {
        true => {
            facts.extend(report.notes.iter().map(|note| Fact::new("note", note)));
            notes.extend(points(report).into_iter().map(Point::note));
        }
        false => {
            notes.extend(report.notes.iter().map(|note| Note::new("note", note)));
            let more = beside_release(report).chain(left_out(report));
            notes.extend(builds(report).into_iter().chain(more).map(Point::note));
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
pub fn conclusion(outcome: Outcome, sentence: &str) -> String {
    let lead = format!("{outcome}: ");
    format!("gate: {lead}{}", sentence.strip_prefix(&lead).unwrap_or(sentence))
}

/// What a point is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "kebab-case")]
enum About {
    Slower,
    Faster,
    Fail,
    Undecided,
    New,
    Calls,
    #[strum(to_string = "{0}")]
    Registered(&'static str),
    Parameters,
    Changed,
    #[strum(to_string = "not known")]
    NotKnown,
    #[strum(to_string = "no load reached")]
    Unreached,
    #[strum(
        to_string = "not judged (too few calls, beside other threads, not readable, or not asked for)"
    )]
    NotJudged,
}

/// What a reader has to know, in a line.
struct Point {
    about: About,
    /// The candidate is judged beside the release.
    of_release: bool,
    words: String,
}

impl Point {
    fn new(about: About, words: String) -> Self {
        Self { about, of_release: false, words }
    }

    fn title(&self) -> String {
        match (self.about, self.of_release) {
            (about, false) => about.to_string(),
            (About::Slower, true) => "slower than the release".to_owned(),
            (about, true) => format!("{about} beside the release"),
        }
    }

    fn note(self) -> Note {
        Note::new(self.title(), self.words)
    }
}

/// What the builds register that differs, module parameters whose defaults do, and what became slower or faster, each cause once.
fn builds(report: &GateReport) -> Vec<Point> {
    let mut points = Vec::new();
    if let Some(registered) = &report.registered {
        let differences = registered.differences();
        points.extend(
            differences.map(|(what, hook)| Point::new(About::Registered(what), hook.clone())),
        );
        let undecided = registered.undecided.iter();
        points.extend(undecided.map(|words| Point::new(About::Undecided, words.clone())));
    }
    if !report.defaults.is_empty() {
        points.push(Point::new(About::Parameters, phrases(&report.defaults)));
    }
    points.extend(report.causes.iter().map(|cause| {
        let about = if cause.is_slower() { About::Slower } else { About::Faster };
        Point::new(about, cause.words())
    }));
    points
}

/// What the candidate is beside the release, as far as that matters.
fn beside_release(report: &GateReport) -> impl Iterator<Item = Point> {
    report
        .release
        .iter()
        .flat_map(|release| points(release))
        .filter(|point| matches!(point.about, About::Slower | About::Fail | About::Undecided))
        .map(|point| Point { of_release: true, ..point })
}

/// What changed and why, what is undecided, and what was not judged.
fn points(report: &GateReport) -> Vec<Point> {
    let mut points = builds(report);
    for line in &report.lines {
        // A cause says what calls take, and not how often something happens.
        let is_explained = line.statistic.is_none_or(Statistic::is_of_tree)
            && report.causes.iter().any(|cause| cause.explains(line));
        let about = match line.verdict {
            Verdict::Fail if !is_explained || line.budget.is_some() => About::Fail,
            Verdict::Inconclusive | Verdict::Insufficient | Verdict::Vanished => About::Undecided,
            Verdict::New => About::New,
            Verdict::Pass if line.improved && !is_explained => About::Faster,
            Verdict::Pass if line.is_of_calls() && line.evidence.starts_with(FEWER) => About::Calls,
            _ => continue,
        };
        let words = format!("{} {}: {}", line.subject(), line.figure(), line.evidence);
        points.push(Point::new(about, words));
    }
    points.extend(beside_release(report));
    if let (Some(words), false) = (&report.changed, report.is_of_equal()) {
        points.push(Point::new(About::Changed, words.clone()));
    }
    if let Some(registered) = report.registered.as_ref().filter(|it| !it.unknown.is_empty()) {
        points.push(Point::new(About::NotKnown, registered.unknown.join("; ")));
    }
    points.extend(left_out(report));
    points
}

/// What was not judged; of recordings, hooks that no load reached.
fn left_out(report: &GateReport) -> Vec<Point> {
    let mut points = Vec::new();
    let (unreached, not_judged) = match (&report.left_out, &report.registered) {
        (Some(LeftOut { unreached, not_judged, failed }), _) => {
            points.extend(failed.iter().map(|words| Point::new(About::Undecided, words.clone())));
            (unreached, &not_judged[..])
        }
        (None, Some(registered)) => (&registered.unreached, &[][..]),
        (None, None) => return points,
    };
    if !unreached.is_empty() {
        let count = unreached.len();
        let what = match &report.registered {
            Some(hooks) if hooks.unreached.len() < count => "hooks and handlers".to_owned(),
            Some(_) => format!("hook{}", plural(count)),
            None => format!("function{} (which of them are hooks is not known)", plural(count)),
        };
        let words = format!("{count} {what}: {}", listed(unreached));
        points.push(Point::new(About::Unreached, words));
    }
    if !not_judged.is_empty() {
        points.push(Point::new(About::NotJudged, not_judged.join("; ")));
    }
    points
}

/// The report as JUnit XML: one suite per handler, one case per figure.
pub fn junit(report: &GateReport) -> Vec<u8> {
    let case = |line: &Line| {
        let status = match line.verdict {
            Verdict::Pass => TestCaseStatus::success(),
            Verdict::Fail => junit::failed(),
            Verdict::Inconclusive | Verdict::Insufficient | Verdict::Vanished => junit::undecided(),
            Verdict::New => TestCaseStatus::skipped(),
        };
        let (suite, name) = (line.subject(), line.figure());
        junit::case(&suite, &name, status, &with_causes(report, line), &runs_behind(line))
    };
    let mut cases: Vec<TestCase> = report.lines.iter().map(case).collect();
    let of_point = |suite: &str, point: &Point, decided: TestCaseStatus| {
        let is_undecided = point.about == About::Undecided;
        let status = if is_undecided { junit::undecided() } else { decided };
        junit::case(suite, &point.title(), status, &point.words, "")
    };
    cases.extend(beside_release(report).map(|it| of_point("release", &it, junit::failed())));
    let left_out = left_out(report);
    cases.extend(left_out.iter().map(|it| of_point("gate", it, TestCaseStatus::skipped())));
    if report.is_of_equal() {
        let status = TestCaseStatus::success();
        cases.push(junit::case("gate", "pass", status, "", &report.summary));
    } else if report.is_refused() || cases.is_empty() {
        let outcome = report.outcome.to_string();
        cases.push(junit::case("gate", &outcome, junit::undecided(), &report.summary, ""));
    }
    junit::document("profiler gate", cases)
}

/// Workflow commands of GitHub Actions, one per line: errors for what fails or made handlers slower and for a refusal, warnings for
/// what is undecided, notices for the rest.
pub fn annotations(report: &GateReport) -> String {
    let mut text = String::new();
    if report.is_refused() {
        text += &annotation("error", &report.outcome.to_string(), &report.summary);
    }
    for point in points(report) {
        let level = match point.about {
            About::Slower | About::Fail => "error",
            About::Undecided => "warning",
            _ => "notice",
        };
        text += &annotation(level, &point.title(), &point.words);
    }
    text
}

fn annotation(level: &str, title: &str, message: &str) -> String {
    let title = escape_property(&format!("latency gate: {title}"));
    format!("::{level} title={title}::{}\n", escape_data(message))
}

/// The evidence, with the causes if the line failed.
fn with_causes(report: &GateReport, line: &Line) -> String {
    let is_cause = |cause: &&Cause| line.verdict == Verdict::Fail && cause.explains(line);
    let causes = report.causes.iter().filter(is_cause);
    let causes = causes.map(|cause| cause.of_handler(&line.handler).words());
    std::iter::once(line.evidence.clone()).chain(causes).collect::<Vec<_>>().join("; ")
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
    if line.improved { "faster" } else { line.verdict.into() }
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
