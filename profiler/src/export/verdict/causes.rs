//! What made handlers and operations slower or faster, where calls were counted: each function of the driver once, with all that it
//! reaches.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::explain::{self, Explained, NamedRuns, explain};
use crate::recording::DriverCost;
use crate::verdict::{Gate, Line, Part, Run, Statistic, Verdict, load_of, subject};

/// Callees and lines that are named.
const MOST: usize = 5;
/// Smallest part of what changed most that is a cause: the rest is what caches are refilled with.
const LEAST: f64 = 0.05;
/// Share of an operation's change that handlers have to explain.
const EXPLAINED: f64 = 0.8;

/// A function of the driver that changed, and what that changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Cause {
    /// The function.
    pub function: String,
    /// The module that holds it; `null` is the kernel image.
    pub module: Option<String>,
    /// The kernel's release, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Instructions that a call of it takes more, with what it calls; where handlers differ in that, of the one that changed most.
    pub instructions: f64,
    /// Those of its own code.
    pub own: f64,
    /// Functions that it calls, with their parts; what changed most first.
    pub callees: Vec<Changed>,
    /// Its source lines, with their parts of its own code.
    pub lines: Vec<Changed>,
    /// Handlers and operations that it is called in: those that are beyond a limit first.
    pub reaches: Vec<Reached>,
}

/// A function or line, and its part of the change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Changed {
    /// Its name, or file and line.
    pub what: String,
    /// Instructions that a call takes more.
    pub instructions: f64,
}

/// A handler or operation that a cause changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Reached {
    /// The load profile, if runs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The handler, or `operation of LOAD`.
    pub handler: String,
    /// Instructions of this cause, per call of the handler or per operation.
    pub instructions: f64,
    /// Whether the handler or operation failed, or became faster by more than its limit.
    pub is_beyond: bool,
    /// The figure that is beyond its limit, or the average.
    pub figure: Statistic,
    /// Its value in the baseline.
    pub base: f64,
    /// Its value in the candidate.
    pub candidate: f64,
    /// Its change in percent of the baseline; with placements, the median.
    pub percent: Option<f64>,
}

/// What one function adds to a handler, or to an operation.
type Parts = BTreeMap<explain::Function, (explain::Cause, f64)>;

/// The causes of what is beyond a limit, what became slower first; none where calls have no tree.
pub(super) fn causes(gate: &Gate<'_>) -> Vec<Cause> {
    type Found = (explain::Cause, Vec<Reached>);
    let mut found: BTreeMap<(Option<&str>, explain::Function), Found> = BTreeMap::new();
    if !gate.lines.iter().any(is_beyond) {
        return Vec::new();
    }
    // A function is another one on each kernel.
    let kernels: BTreeSet<Option<&str>> = gate.parts.iter().map(Part::kernel).collect();
    for part in &gate.parts {
        let kernel = part.kernel().filter(|_| kernels.len() > 1);
        for (handler, parts) in of_part(gate, part) {
            let Some(line) = line(gate, part, &handler) else { continue };
            for (function, (cause, instructions)) in parts {
                let reached = reached(line, instructions);
                let (most, all) =
                    found.entry((kernel, function)).or_insert_with(|| (cause.clone(), Vec::new()));
                if cause.total().abs() > most.total().abs() {
                    *most = cause;
                }
                all.extend(reached);
            }
        }
    }
    let mut causes: Vec<Cause> =
        found.into_iter().map(|((kernel, _), found)| Cause::of(kernel, found)).collect();
    causes.retain(|cause| cause.reaches.iter().any(|reached| reached.is_beyond));
    let weight = |cause: &Cause| {
        let each = cause.reaches.iter().filter(|reached| reached.is_beyond);
        each.map(|reached| reached.instructions).sum::<f64>()
    };
    causes.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    causes
}

fn is_beyond(line: &Line) -> bool {
    line.budget.is_none()
        && (line.verdict == Verdict::Fail || line.improved)
        && line.statistic.is_none_or(Statistic::is_of_tree)
}

/// The line that stands for a handler or operation: one that is beyond its limit, or the first.
fn line<'a>(gate: &'a Gate<'_>, part: &Part<'_>, handler: &str) -> Option<&'a Line> {
    let of_it = |line: &&Line| {
        line.part == part.name
            && line.handler == handler
            && line.budget.is_none()
            && line.statistic.is_some_and(Statistic::is_of_tree)
            && line.change.is_some()
    };
    let mut lines = gate.lines.iter().filter(of_it);
    let of_average = |line: &&Line| line.statistic == Some(Statistic::Avg);
    let beyond = lines.clone().find(|line| is_beyond(line));
    beyond.or_else(|| lines.clone().find(of_average)).or_else(|| lines.next())
}

fn reached(line: &Line, instructions: f64) -> Option<Reached> {
    let change = line.change.as_ref()?;
    Some(Reached {
        part: line.part.clone(),
        handler: line.handler.clone(),
        instructions,
        is_beyond: is_beyond(line),
        figure: change.statistic,
        base: change.base?,
        candidate: change.candidate?,
        percent: change.percent,
    })
}

/// What each judged handler and operation of a part has changed by, and by which functions.
fn of_part(gate: &Gate<'_>, part: &Part<'_>) -> Vec<(String, Parts)> {
    let is_counted =
        part.base.iter().chain(&part.candidate).all(|run| run.recording.call_tree.is_some());
    let differs = |line: &&Line| {
        line.part == part.name
            && line.change.as_ref().is_some_and(|change| change.change != Some(0.0))
    };
    let mut handlers: Vec<&String> =
        gate.lines.iter().filter(differs).map(|line| &line.handler).collect();
    handlers.dedup();
    if !is_counted || handlers.is_empty() {
        return Vec::new();
    }
    let sides = [recording("baseline", &part.base), recording("candidate", &part.candidate)];
    let roots = explain(&sides, None).map(|(roots, _)| roots).unwrap_or_default();
    let mut found: Vec<(String, Parts)> = Vec::new();
    for handler in handlers {
        let parts = match load_of(handler) {
            Some(_) => operation(part, handler, &roots, line(gate, part, handler)),
            None => explain(&sides, Some(handler))
                .ok()
                .map(|(of, _)| parts(&of, |of| of.calls[1] as f64)),
        };
        if let (Some(parts), false) = (parts, found.iter().any(|(name, _)| name == handler)) {
            found.push((handler.clone(), parts));
        }
    }
    found
}

fn recording<'a>(name: &str, runs: &[&'a Run]) -> NamedRuns<'a> {
    NamedRuns { name: name.to_owned(), runs: runs.iter().map(|run| &run.recording).collect() }
}

/// Of all handlers that ran in an operation, if they explain how it changed.
fn operation(
    part: &Part<'_>,
    name: &str,
    roots: &[Explained],
    line: Option<&Line>,
) -> Option<Parts> {
    let of_load = |cost: &&DriverCost| load_of(name) == Some(cost.load.name());
    let costs = part.candidate.iter().flat_map(|run| &run.recording.driver_costs).filter(of_load);
    let operations: u64 = costs.map(|cost| cost.operations).fold(0, u64::saturating_add);
    let change = line?.change.as_ref()?.change?;
    let parts = parts(roots, |_| operations as f64);
    let sum: f64 = parts.values().map(|(_, instructions)| instructions).sum();
    (sum * change > 0.0 && sum.abs() >= EXPLAINED * change.abs()).then_some(parts)
}

/// The causes of `handlers`, and what they add to each of so many calls or operations.
fn parts(handlers: &[Explained], per: impl Fn(&Explained) -> f64) -> Parts {
    let mut parts = Parts::new();
    for of in handlers {
        let share = of.calls[1] as f64 / per(of).max(1.0);
        for cause in of.causes() {
            let instructions = cause.total() * cause.calls * share;
            let (_, sum) = parts.entry(cause.function.clone()).or_insert((cause, 0.0));
            *sum += instructions;
        }
    }
    let largest = parts.values().map(|(_, instructions)| instructions.abs()).fold(0.0, f64::max);
    parts.retain(|_, (_, instructions)| instructions.abs() >= (LEAST * largest).max(0.05));
    parts
}

impl Cause {
    fn of(kernel: Option<&str>, (cause, mut reaches): (explain::Cause, Vec<Reached>)) -> Self {
        let changed = |what: String, instructions: f64| Changed { what, instructions };
        let callees = cause.callees.iter();
        let lines = cause.lines.iter();
        reaches.sort_by_key(|reached| (!reached.is_beyond, load_of(&reached.handler).is_some()));
        Self {
            function: cause.function.name.clone(),
            module: cause.function.module.clone(),
            kernel: kernel.map(str::to_owned),
            instructions: cause.total(),
            own: cause.own,
            callees: by_size(callees.map(|(callee, by)| changed(callee.name.clone(), *by))),
            lines: by_size(lines.map(|(file, at, by)| changed(format!("{file}:{at}"), *by))),
            reaches,
        }
    }

    /// Whether calls take more.
    pub fn is_slower(&self) -> bool {
        self.instructions > 0.0
    }

    /// Whether it is behind this handler or operation.
    pub fn explains<E>(&self, line: &Line<E>) -> bool {
        let mut reaches = self.reaches.iter();
        reaches.any(|reached| reached.part == line.part && reached.handler == line.handler)
    }

    /// The function, what it takes more of, and what it reaches.
    pub fn words(&self) -> String {
        let more = if self.is_slower() { "more" } else { "fewer" };
        let on = self.kernel.as_ref().map_or(String::new(), |kernel| format!(" on {kernel}"));
        let mut text = format!(
            "{}{on} takes {:.1} instructions {more} a call",
            self.function,
            self.instructions.abs()
        );
        let mut of: Vec<String> =
            most(&self.callees, |it| format!("{} {:+.1}", it.what, it.instructions));
        if self.own.abs() >= 0.05 {
            let at = self.places();
            of.push(format!(
                "itself {:+.1}{}{at}",
                self.own,
                if at.is_empty() { "" } else { " at " }
            ));
        }
        if !of.is_empty() {
            text.push_str(&format!(": {}", of.join(", ")));
        }
        let (beyond, within): (Vec<&Reached>, Vec<_>) =
            self.reaches.iter().partition(|it| it.is_beyond);
        for (reached, before) in [(beyond, "; reaches "), (within, "; within limits ")] {
            let reached: Vec<String> = reached.iter().map(|it| self.reached(it)).collect();
            if !reached.is_empty() {
                text.push_str(before);
                text.push_str(&reached.join(", "));
            }
        }
        text
    }

    /// Its lines: `filter.c:233, 242`.
    fn places(&self) -> String {
        let (mut file, mut places) = ("", Vec::new());
        for line in self.lines.iter().take(MOST) {
            let (of, at) = line.what.rsplit_once(':').unwrap_or((&line.what, ""));
            places.push(if of == file { at.to_owned() } else { line.what.clone() });
            file = of;
        }
        places.extend(and_more(self.lines.len()));
        places.join(", ")
    }

    fn reached(&self, it: &Reached) -> String {
        let is_other = |other: &&Reached| other.handler == it.handler;
        let name = match self.reaches.iter().filter(is_other).count() {
            1 => it.handler.clone(),
            _ => subject(it.part.as_deref(), &it.handler),
        };
        let figure = match it.figure {
            Statistic::Avg => String::new(),
            other => format!(" {other}"),
        };
        let percent = it.percent.map_or(String::new(), |percent| format!(" {percent:+.2} %"));
        format!("{name}{figure}{percent} ({:.1} to {:.1})", it.base, it.candidate)
    }
}

/// What changed most first.
fn by_size(changed: impl Iterator<Item = Changed>) -> Vec<Changed> {
    let mut all: Vec<Changed> = changed.collect();
    all.sort_by(|a, b| {
        b.instructions.abs().total_cmp(&a.instructions.abs()).then_with(|| a.what.cmp(&b.what))
    });
    all
}

/// The first of `all`, and how many more there are.
fn most(all: &[Changed], words: impl Fn(&Changed) -> String) -> Vec<String> {
    all.iter().take(MOST).map(words).chain(and_more(all.len())).collect()
}

fn and_more(all: usize) -> Option<String> {
    all.checked_sub(MOST).filter(|more| *more > 0).map(|more| format!("{more} more"))
}
