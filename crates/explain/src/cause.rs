//! Finds the functions of the driver that cause a handler's difference. A function includes what it calls, except functions of the
//! driver that are called as often as before: these are causes of their own.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::select::{alone, explain};
use super::tree::last_name;
use super::{Explained, Function, NamedRuns};

/// A smaller share of more or fewer calls is no difference: caches are refilled every n-th call.
const AS_MANY: f64 = 0.005;

/// A handler that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Root {
    /// The number of the recording that alone has it: all that it takes is the change.
    pub only_in: Option<usize>,
    /// Its calls in the second recording, or in that which has it.
    pub calls: f64,
    /// What its difference comes from.
    pub causes: Vec<Cause>,
}

/// What a function of the driver takes more in the second recording. Figures are instructions per call of the function.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cause {
    /// The function. Where all that differs was inlined from one other function, that one.
    pub function: Function,
    /// Its calls per call of the handler.
    pub calls: f64,
    /// Its own code.
    pub own: f64,
    /// What it calls; what changed most first.
    pub callees: Vec<Changed>,
    /// Its lines that differ, `FILE:LINE`, the line in the second recording if it ran there, and their part of `own`.
    pub lines: Vec<Changed>,
}

/// A function or line, and its part of the change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// Its name, or file and line.
    pub what: String,
    /// Instructions that a call takes more.
    pub instructions: f64,
}

impl Cause {
    /// Instructions of all its code and of what it calls.
    pub fn total(&self) -> f64 {
        self.own + self.callees.iter().map(|callee| callee.instructions).sum::<f64>()
    }
}

/// What differs of `handler`; or of all handlers, with those that one of the recordings alone has.
pub fn roots(recordings: &[NamedRuns<'_>; 2], handler: Option<&str>) -> Vec<Root> {
    let both = explain(recordings, handler).map(|(both, _)| both).unwrap_or_default();
    let in_one = if handler.is_none() { alone(recordings) } else { Vec::new() };
    let both = both.into_iter().map(|of| Root {
        only_in: None,
        calls: of.calls[1] as f64,
        causes: of.causes(),
    });
    let in_one = in_one.into_iter().map(|(at, of)| Root {
        only_in: Some(at),
        calls: of.calls[0] as f64,
        causes: vec![of.whole(if at == 0 { -1.0 } else { 1.0 })],
    });
    both.chain(in_one).collect()
}

/// What was found of a function, per call of the handler.
#[derive(Default)]
struct Found {
    calls: f64,
    own: f64,
    callees: BTreeMap<String, f64>,
    lines: BTreeSet<usize>,
}

impl Explained {
    /// What the difference of two recordings comes from.
    pub(super) fn causes(&self) -> Vec<Cause> {
        let mut found: BTreeMap<Function, Found> = BTreeMap::new();
        // For each node the one that it is part of, and the one below that by which it was reached.
        let mut owners: Vec<(usize, usize)> = Vec::with_capacity(self.nodes.len());
        for (at, node) in self.nodes.iter().enumerate() {
            let (owner, below) = match node.parent.and_then(|parent| owners.get(parent)) {
                _ if node.function.module.is_some() && self.is_as_often(at) => (at, at),
                Some(&(owner, _)) if node.parent == Some(owner) => (owner, at),
                Some(above) => *above,
                None => (at, at),
            };
            owners.push((owner, below));
            if node.change.numerator == 0 && owner != at {
                continue;
            }
            let (function, lines) = self.source_of(&self.nodes[owner].function);
            let cause = found.entry(function.clone()).or_default();
            if owner == at {
                cause.lines.extend(lines);
                cause.calls += self.per_call(1, node.figures[1].calls);
                cause.own += node.change.per_call();
            } else {
                let callee = self.nodes[below].function.name.clone();
                *cause.callees.entry(callee).or_default() += node.change.per_call();
            }
        }
        let causes = found.into_iter().map(|(function, found)| self.cause(function, found));
        causes.filter(|cause| cause.total() != 0.0).collect()
    }

    fn cause(&self, function: Function, found: Found) -> Cause {
        let calls = if found.calls > 0.0 { found.calls } else { 1.0 };
        let callees = found.callees.into_iter().map(|(callee, by)| (callee, by / calls));
        let lines = found.lines.into_iter().filter_map(|number| {
            let line = &self.lines[number];
            let file = last_name(line.file.as_deref()?);
            let at = line.at.iter().rev().flatten().next()?;
            Some((format!("{file}:{at}"), line.change.per_call() / calls))
        });
        Cause {
            function,
            calls: found.calls,
            own: found.own / calls,
            callees: by_size(callees),
            lines: by_size(lines),
        }
    }

    /// The handler and what it calls, of one recording; `sign` is -1 where a change takes it away.
    fn whole(&self, sign: f64) -> Cause {
        let (mut own, mut callees) = (0.0, BTreeMap::new());
        for node in &self.nodes {
            let figures = node.figures[0];
            match node.parent {
                None => own = sign * self.per_call(0, figures.own),
                Some(0) => {
                    let sum: &mut f64 = callees.entry(node.function.name.clone()).or_default();
                    *sum += sign * self.per_call(0, figures.inclusive);
                }
                Some(_) => {}
            }
        }
        let (function, callees) = (self.handler.clone(), by_size(callees));
        Cause { function, calls: 1.0, own, callees, lines: Vec::new() }
    }

    /// Whether a function is called as often in both recordings.
    fn is_as_often(&self, at: usize) -> bool {
        let calls = [0, 1].map(|side| self.per_call(side, self.nodes[at].figures[side].calls));
        (calls[0] - calls[1]).abs() <= AS_MANY * calls[0].max(calls[1])
    }

    /// The function of the source whose lines differ in `function`, and these lines; itself, if they are of several.
    fn source_of<'a>(&'a self, function: &'a Function) -> (&'a Function, Vec<usize>) {
        let differ = self.lines.iter().enumerate().filter(|(_, line)| {
            line.change.numerator != 0 && line.within.iter().any(|within| within.contains(function))
        });
        let (numbers, lines): (Vec<usize>, Vec<_>) = differ.unzip();
        let sources: BTreeSet<&Function> = lines.iter().map(|line| &line.function).collect();
        match sources.first() {
            Some(only) if sources.len() == 1 => (only, numbers),
            _ => (function, numbers),
        }
    }
}

/// What changed most first.
fn by_size(changed: impl IntoIterator<Item = (String, f64)>) -> Vec<Changed> {
    let changed = changed.into_iter();
    let mut all: Vec<Changed> =
        changed.map(|(what, instructions)| Changed { what, instructions }).collect();
    all.sort_by(|a, b| {
        b.instructions.abs().total_cmp(&a.instructions.abs()).then_with(|| a.what.cmp(&b.what))
    });
    all
}
