//! Finds the functions of the driver that cause a handler's difference. A function includes what it calls, except functions of the
//! driver that are called as often as before: these are causes of their own.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::last_name;
use super::{Explained, Figures, Function};

/// A smaller share of more or fewer calls is no difference: caches are refilled every n-th call.
const AS_MANY: f64 = 0.005;

/// What a function of the driver takes more in the second recording. Figures are instructions per call of the function.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cause {
    /// The function. Where all that differs was inlined from one other function, that one.
    pub function: Function,
    /// Its calls per call of the handler.
    pub calls: f64,
    /// Its own code.
    pub own: f64,
    /// What it calls.
    pub callees: BTreeMap<Function, f64>,
    /// Its lines that differ: the file's last name, the line in the second recording if it ran there, and their part of `own`.
    pub lines: Vec<(String, u64, f64)>,
}

impl Cause {
    /// Instructions of all its code and of what it calls.
    pub fn total(&self) -> f64 {
        self.own + self.callees.values().sum::<f64>()
    }
}

impl Explained {
    /// What the difference of two recordings comes from, the largest first; nothing for one recording.
    pub fn causes(&self) -> Vec<Cause> {
        if !self.is_difference() {
            return Vec::new();
        }
        let mut found: BTreeMap<Function, (Cause, BTreeSet<usize>)> = BTreeMap::new();
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
            let (cause, of_cause) = found.entry(function.clone()).or_default();
            if owner == at {
                of_cause.extend(lines);
                cause.calls += self.per_call(1, node.figures[1].calls);
                cause.own += node.change.per_call();
            } else {
                let callee = self.nodes[below].function.clone();
                *cause.callees.entry(callee).or_default() += node.change.per_call();
            }
        }
        let mut causes: Vec<Cause> =
            found.into_iter().map(|(function, found)| self.with_lines(function, found)).collect();
        causes.retain(|cause| cause.total() != 0.0);
        causes.sort_by(|a, b| {
            let [of_a, of_b] = [a, b].map(|cause| (cause.total() * cause.calls).abs());
            of_b.total_cmp(&of_a).then_with(|| a.function.cmp(&b.function))
        });
        causes
    }

    /// The handler and what it calls, of one recording; `sign` is -1 where a change takes it away.
    pub fn whole(&self, sign: f64) -> Cause {
        let mut cause = Cause { function: self.handler.clone(), calls: 1.0, ..Cause::default() };
        for node in &self.nodes {
            let Figures { own, inclusive, .. } = node.figures[0];
            match node.parent {
                None => cause.own = sign * self.per_call(0, own),
                Some(0) => {
                    *cause.callees.entry(node.function.clone()).or_default() +=
                        sign * self.per_call(0, inclusive);
                }
                Some(_) => {}
            }
        }
        cause
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

    fn with_lines(&self, function: Function, found: (Cause, BTreeSet<usize>)) -> Cause {
        let (mut cause, lines) = found;
        let lines = lines.into_iter().filter_map(|number| {
            let line = &self.lines[number];
            let file = line.file.as_deref()?;
            let at = line.at.iter().rev().flatten().next()?;
            Some((last_name(file).to_owned(), *at, line.change.per_call()))
        });
        cause.function = function;
        cause.lines = lines.collect();
        // Its figures so far are per call of the handler.
        let calls = if cause.calls > 0.0 { cause.calls } else { 1.0 };
        cause.own /= calls;
        cause.callees.values_mut().for_each(|change| *change /= calls);
        cause.lines.iter_mut().for_each(|(.., change)| *change /= calls);
        cause
    }
}
