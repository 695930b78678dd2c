//! Why a handler became slower or faster, where its calls were counted: the functions and lines that changed.

use serde::{Deserialize, Serialize};

use crate::explain::{Exact, Explained, NamedRuns, explain};
use crate::verdict::{Gate, Line, Part, Run, Statistic, Verdict, subject};

/// Functions, and lines, that a reason names.
const MOST: usize = 3;

/// What changed in a handler that failed, or that became faster by more than its limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Reason {
    /// The load profile, if runs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The handler.
    pub handler: String,
    /// Instructions of a call in the baseline, on average.
    pub base: f64,
    /// The same in the candidate.
    pub candidate: f64,
    /// The functions whose own instructions changed most.
    pub functions: Vec<Changed>,
    /// The source lines whose instructions changed most.
    pub lines: Vec<Changed>,
}

/// A function or line, and its part of the change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Changed {
    /// Its name, or file and line.
    pub what: String,
    /// Instructions that a call of the handler takes more.
    pub instructions: f64,
}

/// The reasons of what failed first, then of what became faster; none where calls have no tree.
pub(super) fn reasons(gate: &Gate<'_>) -> Vec<Reason> {
    let mut reasons: Vec<Reason> = Vec::new();
    let is_of_tree = |line: &&Line| line.statistic.is_some_and(Statistic::is_of_tree);
    let failed = gate.lines.iter().filter(|line| line.verdict == Verdict::Fail).filter(is_of_tree);
    for line in failed.chain(gate.lines.iter().filter(|line| line.improved).filter(is_of_tree)) {
        let is_line = |reason: &Reason| reason.part == line.part && reason.handler == line.handler;
        let part = gate.parts.iter().find(|part| part.name == line.part);
        if let (false, Some(part)) = (reasons.iter().any(is_line), part) {
            reasons.extend(reason(part, &line.handler));
        }
    }
    reasons
}

pub(super) fn recording<'a>(name: &str, runs: &[&'a Run]) -> NamedRuns<'a> {
    NamedRuns { name: name.to_owned(), runs: runs.iter().map(|run| &run.recording).collect() }
}

fn reason(part: &Part<'_>, handler: &str) -> Option<Reason> {
    // A tree of durations does not add up to a reason.
    let is_counted = |run: &&Run| run.recording.call_tree.is_some();
    if !part.base.iter().chain(&part.candidate).all(is_counted) {
        return None;
    }
    let sides = [recording("baseline", &part.base), recording("candidate", &part.candidate)];
    let (explained, _) = explain(&sides, Some(handler)).ok()?;
    let of = explained.first()?;
    let changed = |what: String, change: Exact| Changed { what, instructions: change.per_call() };
    let functions = of.functions.iter().map(|it| changed(it.function.to_string(), it.change));
    let lines = of.lines.iter().filter_map(|line| {
        let at = line.at.iter().rev().flatten().next()?;
        let file = line.file.as_deref()?;
        let name = file.rsplit('/').next().unwrap_or(file);
        Some(changed(format!("{name}:{at}"), line.change))
    });
    let average = |side: usize| of.per_call(side, Explained::total(of, side));
    Some(Reason {
        part: part.name.clone(),
        handler: handler.to_owned(),
        base: average(0),
        candidate: average(1),
        functions: most(functions),
        lines: most(lines),
    })
}

/// Those that changed most, by at least an instruction in twenty calls.
fn most(changed: impl Iterator<Item = Changed>) -> Vec<Changed> {
    let mut all = by_size(changed.filter(|changed| changed.instructions.abs() >= 0.05));
    all.truncate(MOST);
    all
}

/// What changed most first.
pub(super) fn by_size(changed: impl Iterator<Item = Changed>) -> Vec<Changed> {
    let mut all: Vec<Changed> = changed.collect();
    all.sort_by(|a, b| {
        b.instructions.abs().total_cmp(&a.instructions.abs()).then_with(|| a.what.cmp(&b.what))
    });
    all
}

impl Reason {
    /// The handler, with its load profile if there are several.
    #[must_use]
    pub fn subject(&self) -> String {
        subject(self.part.as_deref(), &self.handler)
    }

    /// Whether calls take more.
    #[must_use]
    pub fn is_slower(&self) -> bool {
        self.candidate > self.base
    }

    /// How much more or less a call takes, and where.
    #[must_use]
    pub fn words(&self) -> String {
        let Self { base, candidate, .. } = self;
        let more = if self.is_slower() { "more" } else { "fewer" };
        let by = (candidate - base).abs();
        let mut text = format!(
            "{by:.1} instructions {more} a call ({base:.1} to {candidate:.1}, {:+.2} %)",
            (candidate - base) / base.max(1.0) * 100.0
        );
        for (what, changed) in [("in", &self.functions), ("at", &self.lines)] {
            let listed = |it: &Changed| format!("{} {:+.1}", it.what, it.instructions);
            let listed = changed.iter().map(listed).collect::<Vec<_>>().join(", ");
            if !listed.is_empty() {
                text.push_str(&format!("; {what} {listed}"));
            }
        }
        text
    }
}
