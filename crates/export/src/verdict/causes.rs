//! What made handlers and operations slower or faster, where calls were counted: each function of the driver once, with all that it
//! reaches.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use profiler_explain::Changed;
use profiler_explain::{self as explain, NamedRuns, Root, roots};
use profiler_verdict::{Gate, Line, Part, Run, Side, Statistic, Verdict, load_of, subject};

/// Callees and lines that are named.
const MOST: usize = 5;
/// Smallest part of what changed most that is a cause: the rest is what caches are refilled with.
const LEAST: f64 = 0.05;
/// Share of what changed within an operation's handlers that causes have to explain.
const EXPLAINED: f64 = 0.8;

/// A function of the driver that changed, and what that changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cause {
    pub function: String,
    /// Others of its module whose calls take as much more, by the same callees and lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// The module that holds it; `null` is the kernel image.
    pub module: Option<String>,
    /// The kernel's release, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The build that alone has it as a handler: all that it takes is the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_in: Option<Side>,
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

/// A handler or operation that a cause changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reached {
    /// The load profile, if runs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The handler, or `operation of LOAD`.
    pub handler: String,
    /// Instructions of this cause, per call of the handler or per operation.
    pub instructions: f64,
    /// Of an operation's change, what is around handlers: kprobes, tracepoints, trampolines, and what the entry code calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub around: Option<f64>,
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

/// A function, and the build that alone has it as a handler. It may be one of both under another load.
type Changing = (Option<Side>, explain::Function);

/// What each function adds to a handler, or to an operation.
type Parts = BTreeMap<Changing, Added>;

/// What a function adds.
struct Added {
    /// To a call of it.
    cause: explain::Cause,
    /// To the handler, or to the operation.
    instructions: f64,
}

/// The causes of what is beyond a limit, what became slower first; none where calls have no tree.
pub(super) fn causes(gate: &Gate<'_>) -> Vec<Cause> {
    let mut found: BTreeMap<(Option<&str>, Changing), Cause> = BTreeMap::new();
    if !gate.lines.iter().any(is_beyond) {
        return Vec::new();
    }
    // A function is another one on each kernel.
    let kernels: BTreeSet<Option<&str>> = gate.parts.iter().map(Part::kernel).collect();
    for part in &gate.parts {
        let kernel = part.kernel().filter(|_| kernels.len() > 1);
        for (line, parts, around) in of_part(gate, part) {
            for (changing, Added { cause, instructions }) in parts {
                let cause = Cause::of(kernel, changing.0, cause);
                let known = found.entry((kernel, changing)).or_insert_with(|| cause.clone());
                if cause.instructions.abs() > known.instructions.abs() {
                    let reaches = std::mem::take(&mut known.reaches);
                    *known = Cause { reaches, ..cause };
                }
                known.reaches.extend(reached(line, instructions, around));
            }
        }
    }
    let mut causes: Vec<Cause> = Vec::new();
    for mut cause in found.into_values().filter(|it| it.reaches.iter().any(|it| it.is_beyond)) {
        cause.sort();
        match causes.iter_mut().find(|other| other.is_same(&cause)) {
            Some(other) => other.join(cause),
            None => causes.push(cause),
        }
    }
    causes.sort_by(|a, b| b.weight().total_cmp(&a.weight()));
    causes
}

fn is_beyond(line: &Line) -> bool {
    line.budget.is_none()
        && (line.verdict == Verdict::Fail || line.improved)
        && line.statistic.is_none_or(Statistic::is_of_tree)
}

fn reached(line: &Line, instructions: f64, around: Option<f64>) -> Option<Reached> {
    let change = line.change.as_ref()?;
    Some(Reached {
        part: line.part.clone(),
        handler: line.handler.clone(),
        instructions,
        around,
        is_beyond: is_beyond(line),
        figure: change.statistic,
        base: change.base?,
        candidate: change.candidate?,
        percent: change.percent,
    })
}

/// The handlers and operations of a part that changed, each by the line that stands for it: one that is beyond its limit, the average,
/// or the first.
fn changed<'a>(gate: &'a Gate<'_>, part: &Part<'_>) -> Vec<&'a Line> {
    let is_of_tree = |line: &&Line| {
        line.part == part.name
            && line.budget.is_none()
            && line.statistic.is_some_and(Statistic::is_of_tree)
            && line.change.is_some()
    };
    let mut lines: Vec<&Line> = gate.lines.iter().filter(is_of_tree).collect();
    lines.sort_by_key(|line| line.rank());
    let differ = lines
        .iter()
        .filter(|line| line.change.as_ref().is_some_and(|change| change.change != Some(0.0)));
    let mut left: BTreeSet<&str> = differ.map(|line| &*line.handler).collect();
    lines.retain(|line| left.remove(&*line.handler));
    lines
}

/// The line of each handler and operation of a part that changed, the functions that changed it, and what of an operation lies around
/// handlers.
fn of_part<'a>(gate: &'a Gate<'_>, part: &Part<'_>) -> Vec<(&'a Line, Parts, Option<f64>)> {
    let mut runs = part.base.iter().chain(&part.candidate);
    let lines = changed(gate, part);
    if lines.is_empty() || !runs.all(|run| run.recording.call_tree.is_some()) {
        return Vec::new();
    }
    let sides =
        [recording(Side::Baseline, &part.base), recording(Side::Candidate, &part.candidate)];
    let has_operations = lines.iter().any(|line| load_of(&line.handler).is_some());
    let all = if has_operations { roots(&sides, None) } else { Vec::new() };
    let found = lines.into_iter().filter_map(|line| {
        let (parts, around) = match load_of(&line.handler) {
            Some(load) => operation(part, line, load, &all)?,
            None => {
                let of_it = roots(&sides, Some(&line.handler));
                (parts(&of_it, |root| (root.calls, f64::INFINITY)), None)
            }
        };
        Some((line, parts, around))
    });
    found.collect()
}

fn recording<'a>(side: Side, runs: &[&'a Run]) -> NamedRuns<'a> {
    NamedRuns { name: side.to_string(), runs: runs.iter().map(|run| &run.recording).collect() }
}

/// Of all handlers that ran in an operation, if they explain what changed in handlers; and what changed around these.
fn operation(
    part: &Part<'_>,
    line: &Line,
    load: &str,
    roots: &[Root],
) -> Option<(Parts, Option<f64>)> {
    let change = line.change.as_ref()?.change?;
    // Operations, and what of one lies within handlers.
    let sides = [&part.base, &part.candidate].map(|runs| {
        let costs = runs.iter().flat_map(|run| &run.recording.driver_costs);
        let costs = costs.filter(|cost| cost.load.name() == load);
        let operations = costs.clone().map(|cost| cost.operations as f64).sum::<f64>();
        let within = costs.map(|cost| Some(cost.within? * cost.operations as f64));
        (operations, within.sum::<Option<f64>>().map(|sum| sum / operations))
    });
    let mut parts = parts(roots, |root| match root.only_in {
        None => (sides[1].0, f64::INFINITY),
        Some(side) => {
            let (operations, within) = sides[side];
            (operations, within.map_or(f64::INFINITY, |within| within / EXPLAINED))
        }
    });
    let within = sides[0].1.zip(sides[1].1).map(|(base, candidate)| candidate - base);
    // A tail is not made of averages.
    let within = within.filter(|_| line.statistic == Some(Statistic::Avg));
    let sum: f64 = parts.values().map(|added| added.instructions).sum();
    let expected = within.unwrap_or(change);
    let least = (EXPLAINED * expected.abs()).max(LEAST * change.abs());
    let explains = sum * expected > 0.0 && sum.abs() >= least;
    // What goes the other way did not make it so.
    parts.retain(|_, added| added.instructions * change > 0.0);
    explains.then(|| (parts, within.map(|within| change - within)))
}

/// The causes of `roots`, and what they add to each of so many calls or operations. What adds more than the most ran elsewhere.
fn parts(roots: &[Root], per_and_most: impl Fn(&Root) -> (f64, f64)) -> Parts {
    let mut parts = Parts::new();
    for root in roots {
        let (per, most) = per_and_most(root);
        let only_in = root.only_in.map(|at| [Side::Baseline, Side::Candidate][at]);
        for cause in &root.causes {
            let instructions = cause.total() * cause.calls * root.calls / per.max(1.0);
            if instructions.abs() <= most {
                let added = parts
                    .entry((only_in, cause.function.clone()))
                    .or_insert_with(|| Added { cause: cause.clone(), instructions: 0.0 });
                added.instructions += instructions;
            }
        }
    }
    let sizes = parts.values().map(|added| added.instructions.abs());
    let largest = sizes.fold(0.0, f64::max);
    parts.retain(|_, added| added.instructions.abs() >= (LEAST * largest).max(0.05));
    parts
}

impl Cause {
    fn of(kernel: Option<&str>, only_in: Option<Side>, of: explain::Cause) -> Self {
        Self {
            instructions: of.total(),
            function: of.function.name,
            also: Vec::new(),
            module: of.function.module,
            kernel: kernel.map(str::to_owned),
            only_in,
            own: of.own,
            callees: of.callees,
            lines: of.lines,
            reaches: Vec::new(),
        }
    }

    /// Whether calls of another function take as much more, by the same callees and lines: so it is with code that both contain.
    fn is_same(&self, other: &Self) -> bool {
        let (parts, others) = (self.parts(), other.parts());
        (&self.kernel, &self.module, self.only_in) == (&other.kernel, &other.module, other.only_in)
            && equal(self.own, other.own)
            && !parts.is_empty()
            && parts.len() == others.len()
            && parts.iter().zip(others).all(|(part, other)| {
                part.what == other.what && equal(part.instructions, other.instructions)
            })
    }

    fn parts(&self) -> Vec<&Changed> {
        self.callees.iter().chain(&self.lines).collect()
    }

    /// What it says of one of its handlers: that first, and no other handler.
    pub(crate) fn of_handler(&self, handler: &str) -> Self {
        let mut cause = self.clone();
        if let Some(at) = cause.also.iter().position(|function| function == handler) {
            std::mem::swap(&mut cause.function, &mut cause.also[at]);
        }
        cause.reaches.retain(|it| it.handler == handler || load_of(&it.handler).is_some());
        cause
    }

    /// Puts first what is beyond a limit, and handlers before operations.
    fn sort(&mut self) {
        self.reaches.sort_by_key(|it| (!it.is_beyond, load_of(&it.handler).is_some()));
    }

    /// How much of what is beyond a limit it makes.
    fn weight(&self) -> f64 {
        let beyond = self.reaches.iter().filter(|reached| reached.is_beyond);
        beyond.map(|reached| reached.instructions).sum()
    }

    /// Adds a function that changed in the same way.
    fn join(&mut self, other: Self) {
        self.also.push(other.function);
        for reached in other.reaches {
            let mut known = self.reaches.iter_mut();
            let key = (&reached.part, &reached.handler);
            match known.find(|it| (&it.part, &it.handler) == key) {
                Some(known) => known.instructions += reached.instructions,
                None => self.reaches.push(reached),
            }
        }
        self.sort();
    }

    /// Whether calls take more.
    pub fn is_slower(&self) -> bool {
        self.instructions > 0.0
    }

    /// Whether it is behind this handler or operation.
    pub fn explains(&self, line: &Line) -> bool {
        let mut reaches = self.reaches.iter();
        reaches.any(|reached| reached.part == line.part && reached.handler == line.handler)
    }

    /// The function, what it takes more of, and what it reaches.
    pub fn words(&self) -> String {
        let on = self.kernel.as_ref().map_or(String::new(), |kernel| format!(" on {kernel}"));
        let names = [&self.function].into_iter().chain(&self.also).cloned();
        let names = most(names.collect()).join(", ");
        let (takes, call, handlers) = match self.also.is_empty() {
            true => ("takes", "call", "a handler"),
            false => ("take", "call of each", "handlers"),
        };
        let (alone, more) = match self.only_in {
            Some(build) => (format!(", {handlers} in the {build} alone,"), ""),
            None => (String::new(), if self.is_slower() { " more" } else { " fewer" }),
        };
        let instructions = self.instructions.abs();
        let mut text =
            format!("{names}{on}{alone} {takes} {instructions:.1} instructions{more} a {call}");
        let callees = self.callees.iter().map(|it| format!("{} {:+.1}", it.what, it.instructions));
        let mut of = most(callees.collect());
        if self.own.abs() >= 0.05 {
            let at = if self.lines.is_empty() { "" } else { " at " };
            of.push(format!("itself {:+.1}{at}{}", self.own, self.places()));
        }
        if !of.is_empty() {
            text += &format!(": {}", of.join(", "));
        }
        for (is_beyond, words) in [(true, "reaches"), (false, "within limits")] {
            let reached = self.reaches.iter().filter(|it| it.is_beyond == is_beyond);
            let reached: Vec<String> = reached.map(|it| self.reached(it)).collect();
            if !reached.is_empty() {
                text += &format!("; {words} {}", reached.join(", "));
            }
        }
        text
    }

    /// Its lines: `filter.c:233, 242`.
    fn places(&self) -> String {
        let (mut file, mut places) = ("", Vec::new());
        for line in &self.lines {
            let (of, at) = line.what.rsplit_once(':').unwrap_or((&line.what, ""));
            places.push(if of == file { at.to_owned() } else { line.what.clone() });
            file = of;
        }
        most(places).join(", ")
    }

    fn reached(&self, it: &Reached) -> String {
        let name = match self.reaches.iter().filter(|other| other.handler == it.handler).count() {
            1 => it.handler.clone(),
            _ => subject(it.part.as_deref(), &it.handler),
        };
        let figure = match it.figure {
            Statistic::Avg => String::new(),
            other => format!(" {other}"),
        };
        let percent = it.percent.map_or(String::new(), |percent| format!(" {percent:+.2} %"));
        let change = it.candidate - it.base;
        let around = it.around.filter(|around| around.abs() >= LEAST * change.abs());
        let around = around.map_or(String::new(), |by| format!(", {by:+.1} of it around handlers"));
        format!("{name}{figure}{percent} ({:.1} to {:.1}{around})", it.base, it.candidate)
    }
}

/// Whether two figures are the same to the place that is shown.
fn equal(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.05
}

/// The first of `all`, and how many more there are.
fn most(mut all: Vec<String>) -> Vec<String> {
    let more = all.len().saturating_sub(MOST);
    all.truncate(MOST);
    all.extend((more > 0).then(|| format!("{more} more")));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(what: &str, instructions: f64) -> Vec<Changed> {
        vec![Changed { what: what.to_owned(), instructions }]
    }

    /// A handler that takes 14 instructions more of its own, at this line.
    fn cause(function: &str, line: &str) -> Cause {
        let reached = |handler: &str| Reached {
            part: None,
            handler: handler.to_owned(),
            instructions: 14.0,
            around: None,
            is_beyond: true,
            figure: Statistic::Avg,
            base: 100.0,
            candidate: 114.0,
            percent: Some(14.0),
        };
        Cause {
            function: function.to_owned(),
            also: Vec::new(),
            module: Some("driver".to_owned()),
            kernel: None,
            only_in: None,
            instructions: 17.0,
            own: 14.0,
            callees: changed("lock", 3.0),
            lines: changed(line, 14.0),
            reaches: vec![reached(function), reached("operation of connect")],
        }
    }

    #[test]
    fn functions_are_one_cause_if_callees_and_lines_are_the_same() {
        let [mut one, two] = ["one", "two"].map(|function| cause(function, "a.h:10"));
        assert!(one.is_same(&two));
        // Either side of what is rounded to another figure.
        one.callees[0].instructions = 3.04;
        let almost = Cause { callees: changed("lock", 3.06), ..two.clone() };
        assert!(one.is_same(&almost));
        one.callees[0].instructions = 3.0;
        let others: [fn(&mut Cause); 7] = [
            |it| it.lines = changed("b.c:900", 14.0),
            |it| it.callees = changed("unlock", 3.0),
            |it| it.own = 13.0,
            |it| it.callees[0].instructions = 3.1,
            |it| it.kernel = Some("6.1".to_owned()),
            |it| it.module = None,
            |it| it.only_in = Some(Side::Candidate),
        ];
        for (number, change) in others.into_iter().enumerate() {
            let mut other = two.clone();
            change(&mut other);
            assert!(!one.is_same(&other), "{number}");
        }
        one.join(two);
        let expected = "one, two take 17.0 instructions more a call of each: lock +3.0, itself +14.0 at a.h:10; reaches \
                        one +14.00 % (100.0 to 114.0), two +14.00 % (100.0 to 114.0), operation of connect +14.00 % (100.0 to 114.0)";
        assert_eq!(one.words(), expected);
        assert_eq!(one.reaches[2].instructions, 28.0);
        let of_two = one.of_handler("two").words();
        assert!(of_two.starts_with("two, one take 17.0"), "{of_two}");
        let expected = "; reaches two +14.00 % (100.0 to 114.0), operation of connect +14.00 % (100.0 to 114.0)";
        assert!(of_two.ends_with(expected), "{of_two}");
    }
}
