//! The view of a gate's report, and the report as JUnit XML and annotations.

use itertools::Itertools as _;
use quick_junit::{TestCase, TestCaseStatus};

use profiler_base::text::{listed, phrases, plural};
use profiler_recording::Meter;
use profiler_verdict::{FEWER, Line, Outcome, Statistic, Verdict};

use super::compare;
use super::document::{Document, Level, Note, Row, Table};
use super::junit;
use super::verdict::GateReport;

const NOT_JUDGED: &str =
    "not judged (too few calls, beside other threads, not readable, or not asked for)";

/// The view. For a reader who has not made the recordings, all but what matters is folded.
pub fn document(report: &GateReport) -> Document {
    let is_for_reader = report.left_out.is_some();
    let mut facts: Vec<Note> = report.parts.iter().flat_map(compare::facts).collect();
    if !report.is_of_equal() {
        facts.push(Note::new("rule", rule(report)));
    }
    let mut notes: Vec<Note> = report.notes.iter().map(|note| Note::new("note", note)).collect();
    let points = if is_for_reader {
        facts.append(&mut notes);
        points(report)
    } else {
        let mut points = builds(report);
        points.extend(beside_release(report).chain(left_out(report)));
        points
    };
    notes.extend(points);
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
    let (folded, shown): (Vec<&Line>, Vec<&Line>) = report
        .lines
        .iter()
        .partition(|line| all_folded || line.verdict == Verdict::Pass && !line.improved);
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

fn row(line: &Line) -> Row {
    Row::of(vec![word(line).to_owned(), line.subject(), line.figure(), line.evidence.clone()])
}

/// The report as a table for people; `width` is the terminal's, in columns.
pub fn text(report: &GateReport, width: Option<u16>) -> String {
    let mut document = document(report);
    // A refusal has several lines.
    let conclusion = conclusion(report.outcome, &document.lead.join("\n"));
    let conclusion = conclusion.lines().map(|line| Note::new("", line));
    if report.left_out.is_some() {
        document.notes.splice(..0, conclusion);
        let notes = document.notes;
        return Document { notes, ..Document::default() }.text(width);
    }
    document.lead.clear();
    document.notes.extend(conclusion);
    document.text(width)
}

/// The outcome and its sentence, which may begin with the outcome.
pub fn conclusion(outcome: Outcome, sentence: &str) -> String {
    let lead = format!("{outcome}: ");
    format!("gate: {lead}{}", sentence.strip_prefix(&lead).unwrap_or(sentence))
}

fn undecided(words: &String) -> Note {
    Note::new("undecided", words).at(Level::Warning)
}

/// A case of what a reader has to know.
fn case(suite: &str, note: &Note) -> TestCase {
    let status = match note.level {
        Level::Error => junit::failed(),
        Level::Warning => junit::undecided(),
        Level::Notice => TestCaseStatus::skipped(),
    };
    junit::case(suite, &note.what, status, &note.words)
}

/// What the builds register that differs, module parameters whose defaults do, and what became slower or faster, each cause once.
fn builds(report: &GateReport) -> Vec<Note> {
    let mut points = Vec::new();
    if let Some(registered) = &report.registered {
        let differences = registered.differences();
        points.extend(differences.map(|(what, hook)| Note::new(what, hook.clone())));
        points.extend(registered.undecided.iter().map(undecided));
    }
    if !report.defaults.is_empty() {
        points.push(Note::new("parameters", phrases(&report.defaults)));
    }
    points.extend(report.causes.iter().map(|cause| match cause.is_slower() {
        true => Note::new("slower", cause.words()).at(Level::Error),
        false => Note::new("faster", cause.words()),
    }));
    points
}

/// What the candidate is beside the release, as far as that matters.
fn beside_release(report: &GateReport) -> impl Iterator<Item = Note> {
    let points = report.release.iter().flat_map(|release| points(release));
    points.filter(|note| note.level != Level::Notice).map(|mut note| {
        let than_or_beside = if note.what == "slower" { "than" } else { "beside" };
        note.what += &format!(" {than_or_beside} the release");
        note
    })
}

/// What changed and why, what is undecided, and what was not judged.
fn points(report: &GateReport) -> Vec<Note> {
    let mut points = builds(report);
    for line in &report.lines {
        // A cause says what calls take, and not how often something happens.
        let is_explained = line.statistic.is_none_or(Statistic::is_of_tree)
            && report.causes.iter().any(|cause| cause.explains(line));
        let (level, what) = match line.verdict {
            Verdict::Fail if !is_explained || line.budget.is_some() => (Level::Error, "fail"),
            _ if line.is_undecided() => (Level::Warning, "undecided"),
            Verdict::New => (Level::Notice, "new"),
            Verdict::Pass if line.improved && !is_explained => (Level::Notice, "faster"),
            Verdict::Pass if line.is_of_calls() && line.evidence.starts_with(FEWER) => {
                (Level::Notice, "calls")
            }
            _ => continue,
        };
        let words = format!("{} {}: {}", line.subject(), line.figure(), line.evidence);
        points.push(Note::new(what, words).at(level));
    }
    points.extend(beside_release(report));
    if let (Some(words), false) = (&report.changed, report.is_of_equal()) {
        points.push(Note::new("changed", words));
    }
    if let Some(registered) = report.registered.as_ref().filter(|it| !it.unknown.is_empty()) {
        points.push(Note::new("not known", registered.unknown.join("; ")));
    }
    points.extend(left_out(report));
    points
}

/// What was not judged; of recordings, hooks that no load reached.
fn left_out(report: &GateReport) -> Vec<Note> {
    let mut points = Vec::new();
    let hooks = report.registered.as_ref().map(|registered| &registered.unreached);
    let chosen = report.left_out.as_ref();
    points.extend(chosen.iter().flat_map(|of| &of.failed).map(undecided));
    let unreached = chosen.map(|of| &of.unreached).or(hooks);
    if let Some(unreached) = unreached.filter(|unreached| !unreached.is_empty()) {
        let count = unreached.len();
        let what = match hooks {
            Some(hooks) if hooks.len() < count => "hooks and handlers".to_owned(),
            Some(_) => format!("hook{}", plural(count)),
            None => format!("function{} (which of them are hooks is not known)", plural(count)),
        };
        let words = format!("{count} {what}: {}", listed(unreached));
        points.push(Note::new("no load reached", words));
    }
    if let Some(of) = chosen.filter(|of| !of.not_judged.is_empty()) {
        points.push(Note::new(NOT_JUDGED, of.not_judged.join("; ")));
    }
    points
}

/// The report as JUnit XML: one suite per handler, one case per figure.
pub fn junit(report: &GateReport) -> Vec<u8> {
    let cases = report.lines.iter().map(|line| {
        let status = match line.verdict {
            _ if line.is_undecided() => junit::undecided(),
            Verdict::Pass => TestCaseStatus::success(),
            Verdict::Fail => junit::failed(),
            _ => TestCaseStatus::skipped(),
        };
        let (suite, name) = (line.subject(), line.figure());
        junit::case(&suite, &name, status, &with_causes(report, line))
    });
    let mut cases: Vec<TestCase> = cases.collect();
    cases.extend(beside_release(report).map(|note| case("release", &note)));
    cases.extend(left_out(report).iter().map(|note| case("gate", note)));
    if report.is_of_equal() {
        let status = TestCaseStatus::success();
        cases.push(junit::case("gate", "pass", status, &report.summary));
    } else if report.is_refused() || cases.is_empty() {
        let outcome = report.outcome.to_string();
        cases.push(junit::case("gate", &outcome, junit::undecided(), &report.summary));
    }
    junit::document("profiler gate", cases)
}

/// Workflow commands of GitHub Actions, one per line: errors for what fails or made handlers slower and for a refusal, warnings for
/// what is undecided, notices for the rest.
pub fn annotations(report: &GateReport) -> String {
    let refusal = Note::new(report.outcome.to_string(), &report.summary).at(Level::Error);
    let refusal = report.is_refused().then_some(refusal);
    let annotations = refusal.into_iter().chain(points(report)).map(|note| {
        let title = escape_property(&format!("latency gate: {}", note.what));
        format!("::{} title={title}::{}\n", note.level, escape_data(&note.words))
    });
    annotations.collect()
}

/// The evidence, with the causes if the line failed.
fn with_causes(report: &GateReport, line: &Line) -> String {
    let causes = report.causes.iter();
    let causes = causes.filter(|cause| line.verdict == Verdict::Fail && cause.explains(line));
    let words = causes.map(|cause| cause.of_handler(&line.handler).words());
    std::iter::once(line.evidence.clone()).chain(words).join("; ")
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

fn rule(report: &GateReport) -> String {
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
