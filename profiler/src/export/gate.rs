//! The report of a gate as text, Markdown, JUnit XML and annotations.

use std::fmt::Write as _;

use super::compare::{describe, heading, markdown_cell};
use super::junit::{self, Case, Status};
use super::verdict::{GateReport, figure};
use super::{cell::clean, grid};
use crate::text::plural;
use crate::verdict::{Outcome, Verdict};

type Line = crate::verdict::Line<String>;

/// The report as a table for people; `width` is the terminal's, in columns.
#[must_use]
pub fn text(report: &GateReport, width: Option<u16>) -> String {
    let mut text = heading(&report.parts);
    let _ = writeln!(text, "{:<10} {}", "rule", rule(report));
    if !report.lines.is_empty() {
        text.push('\n');
        let rows = report.lines.iter().map(|line| {
            vec![
                clean(word(line)).into_owned(),
                clean(&line.subject()).into_owned(),
                clean(&line.figure()).into_owned(),
                clean(&line.evidence).into_owned(),
            ]
        });
        text.push_str(&grid::words(
            &["verdict", "handler", "figure", "evidence"],
            rows.collect(),
            width,
        ));
    }
    text.push('\n');
    for note in &report.notes {
        let _ = writeln!(text, "note: {}", clean(note));
    }
    // A refusal has several lines.
    let summary: Vec<_> = report.summary.lines().map(clean).collect();
    let _ = writeln!(text, "gate: {}: {}", report.outcome, summary.join("\n"));
    text
}

/// The report as Markdown: a comment on a change, or the summary of a job.
#[must_use]
pub fn markdown(report: &GateReport) -> String {
    let mut text = format!("### Handler latency gate: {}\n\n", report.outcome);
    for line in report.summary.lines() {
        let _ = writeln!(text, "{}  ", markdown_cell(line));
    }
    text.push('\n');
    for part in &report.parts {
        let _ = writeln!(text, "- {}", markdown_cell(&describe(part)));
    }
    let _ = writeln!(text, "- {}", markdown_cell(&rule(report)));
    for note in &report.notes {
        let _ = writeln!(text, "- {}", markdown_cell(note));
    }
    let (passed, listed): (Vec<&Line>, Vec<&Line>) =
        report.lines.iter().partition(|line| line.verdict == Verdict::Pass && !line.improved);
    if !listed.is_empty() {
        text.push('\n');
        text.push_str(&markdown_table(&listed));
    }
    if !passed.is_empty() {
        let _ = write!(
            text,
            "\n<details><summary>{} passed</summary>\n\n{}\n</details>\n",
            passed.len(),
            markdown_table(&passed)
        );
    }
    text
}

fn markdown_table(lines: &[&Line]) -> String {
    let mut text = "| verdict | handler | figure | evidence |\n|---|---|---|---|\n".to_owned();
    for line in lines {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            word(line),
            markdown_cell(&line.subject()),
            markdown_cell(&line.figure()),
            markdown_cell(&line.evidence)
        );
    }
    text
}

/// The report as JUnit XML: one suite per handler, one case per figure.
#[must_use]
pub fn junit(report: &GateReport) -> Vec<u8> {
    let mut cases: Vec<Case> = report
        .lines
        .iter()
        .map(|line| Case {
            suite: line.subject(),
            name: line.figure(),
            status: match line.verdict {
                Verdict::Pass => Status::Passed,
                Verdict::Fail => Status::Failed,
                Verdict::Inconclusive | Verdict::Insufficient | Verdict::Vanished => Status::Error,
                Verdict::New => Status::Skipped,
            },
            message: line.evidence.clone(),
            system_out: runs_behind(line),
        })
        .collect();
    if matches!(report.outcome, Outcome::NotComparable | Outcome::TooFewRuns) || cases.is_empty() {
        cases.push(Case {
            suite: "gate".to_owned(),
            name: report.outcome.to_string(),
            status: Status::Error,
            message: report.summary.clone(),
            system_out: String::new(),
        });
    }
    junit::document("profiler gate", &cases)
}

/// Workflow commands of GitHub Actions, one per line: errors for failed figures and a refusal, warnings
/// for undecided ones, notices for new or faster ones.
#[must_use]
pub fn annotations(report: &GateReport) -> String {
    let mut text = String::new();
    let mut add = |level: &str, title: &str, message: &str| {
        let _ =
            writeln!(text, "::{level} title={}::{}", escape_property(title), escape_data(message));
    };
    if matches!(report.outcome, Outcome::NotComparable | Outcome::TooFewRuns) {
        add("error", &format!("latency gate: {}", report.outcome), &report.summary);
    }
    for line in &report.lines {
        let level = match line.verdict {
            Verdict::Fail => "error",
            Verdict::Inconclusive | Verdict::Insufficient | Verdict::Vanished => "warning",
            Verdict::New => "notice",
            Verdict::Pass if line.improved => "notice",
            Verdict::Pass => continue,
        };
        let title = format!("{}: {} {}", word(line), line.subject(), line.figure());
        add(level, &title, &line.evidence);
    }
    text
}

/// Escapes the message of a workflow command, which ends with its line and in which `%` starts an escape.
fn escape_data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property of a workflow command, which `:` and `,` end, too.
fn escape_property(text: &str) -> String {
    escape_data(text).replace(':', "%3A").replace(',', "%2C")
}

fn word(line: &Line) -> &'static str {
    if line.improved { "faster" } else { line.verdict.name() }
}

fn rule(report: &GateReport) -> String {
    format!(
        "{} comparison{} together at alpha {} (Holm), bounds at {:.0} %",
        report.comparisons,
        plural(report.comparisons),
        report.alpha,
        report.confidence * 100.0
    )
}

fn runs_behind(line: &Line) -> String {
    let Some(change) = &line.change else { return String::new() };
    let list = |runs: &[Option<f64>]| {
        let shown =
            |run: &Option<f64>| run.map_or("-".to_owned(), |value| figure(value, change.meter()));
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
    fn workflow_commands_are_escaped() {
        assert_eq!(escape_data("5 %\r\n::error::x"), "5 %25%0D%0A::error::x");
        assert_eq!(escape_property("a:b, 1 %"), "a%3Ab%2C 1 %25");
    }
}
