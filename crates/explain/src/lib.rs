//! Where the instructions or the time of a handler's calls go, and how two builds differ in that.
//!
//! All runs of a recording are summed, and the calls of one handler become one tree. Of two recordings both are laid
//! into one tree, and what differs is split into change and what only moved from function to function, as
//! [`difference`] says. All sums are whole numbers; averages are made when they are printed.

mod align;
mod cause;
mod difference;
mod select;
#[cfg(test)]
pub(crate) mod tests;
mod tree;

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use profiler_recording::{Meter, Recording};

pub use cause::{Cause, Changed, Root, roots};
pub use select::explain;

/// Runs that are summed.
#[derive(Debug)]
pub struct NamedRuns<'a> {
    /// Its name in messages.
    pub name: String,
    pub runs: Vec<&'a Recording>,
}

impl NamedRuns<'_> {
    /// What its figures are; all runs of a recording are of one meter.
    pub fn meter(&self) -> Meter {
        self.runs.first().map_or(Meter::default(), |run| run.meter)
    }
}

/// A function of the source. Symbols that the compiler made of it (`.isra.0`, `.part.0`, `.cold`) are the same function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct Function {
    pub name: String,
    /// The module that holds it; `null` is the kernel image.
    pub module: Option<String>,
}

impl Function {
    /// The function that `symbol` is of.
    pub fn of(symbol: &str, module: Option<&String>) -> Self {
        let name = symbol.split('.').next().filter(|name| !name.is_empty()).unwrap_or(symbol);
        Self { name: name.to_owned(), module: module.cloned() }
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.module.as_ref().map_or(Ok(()), |module| write!(f, " [{module}]"))
    }
}

/// What one handler's calls consist of. Lists of figures have an entry a recording: the first, and the second if there
/// are two.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Explained {
    pub handler: Function,
    /// Its calls in each recording; a call of it within a call of it is part of the outer one.
    pub calls: Vec<u64>,
    /// The handler first, and under each function those that it called: what differs most, or takes most, first.
    pub nodes: Vec<Node>,
    /// Functions of the source, what differs most first; empty for one recording.
    pub functions: Vec<SourceFunction>,
    /// Source lines, and whole functions where no lines are known: what differs most, or takes most, first. Their
    /// instructions add up to those of the handler. Empty for durations.
    pub lines: Vec<Line>,
}

/// A function as it was called by its parent.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Node {
    /// Index of the caller in the list of nodes; `null` for the handler.
    pub parent: Option<usize>,
    /// Callers above it.
    pub depth: usize,
    pub function: Function,
    /// Its symbols in the recordings.
    pub symbols: BTreeSet<String>,
    /// Totals of each recording; zeros where it was not called.
    pub figures: Vec<Figures>,
    /// Instructions of the function itself that a call of the handler took more in the second recording, without
    /// those that moved.
    #[serde(skip_serializing_if = "Exact::is_unset")]
    #[schemars(with = "Option<f64>")]
    pub change: Exact,
    /// Instructions a call that came from other functions, or went to them (negative).
    #[serde(skip_serializing_if = "Exact::is_unset")]
    #[schemars(with = "Option<f64>")]
    pub moved: Exact,
    /// How much changed in it and below it, or how much it takes: what nodes are sorted by.
    #[serde(skip)]
    pub weight: u128,
}

/// Totals over all calls of the handler, in the report's unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Figures {
    pub calls: u64,
    /// The function and all that it called.
    pub inclusive: u64,
    /// The function itself.
    #[serde(rename = "self")]
    pub own: u64,
    /// Iterations of its instructions that repeat (`rep`); absent of durations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u64>,
}

impl Figures {
    /// Adds all but what is inclusive.
    pub fn add(&mut self, more: &Self) {
        self.calls = self.calls.saturating_add(more.calls);
        self.own = self.own.saturating_add(more.own);
        if let Some(more) = more.iterations {
            self.iterations = Some(self.iterations.unwrap_or(0).saturating_add(more));
        }
    }
}

/// What became of a function of the source.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Fate {
    /// It ran in the second recording alone.
    Added,
    /// It ran in the first recording alone.
    Gone,
    /// Code of it went to other functions: it was inlined, or is no longer.
    Moved,
    /// It lies where it did.
    Stayed,
}

/// A function of the source in both recordings, wherever its code lies.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SourceFunction {
    pub function: Function,
    /// What became of it.
    pub fate: Fate,
    /// The functions that its code lies in, in each recording: itself, or those that it was inlined into.
    pub within: Vec<BTreeSet<Function>>,
    /// Instructions of its own code, in each recording.
    pub instructions: Vec<u64>,
    /// Instructions that a call of the handler took more in the second recording.
    #[schemars(with = "f64")]
    pub change: Exact,
    /// Instructions a call that went from one function, or caller, to another.
    #[schemars(with = "f64")]
    pub moved: Exact,
}

/// A source line, or a whole function where no lines are known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Line {
    /// The function of the source that it is of.
    pub function: Function,
    /// The file, as the compiler was given it.
    pub file: Option<String>,
    /// The line in each recording, from 1, or the bytes from the symbol's address if `file` is `null`; `null` where it
    /// did not run, and in both for a whole function.
    pub at: Vec<Option<u64>>,
    /// Its text in the last recording in which it ran; of BPF programs alone, whose BTF has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The functions that its code lies in, in each recording.
    pub within: Vec<BTreeSet<Function>>,
    /// Its instructions, in each recording.
    pub instructions: Vec<u64>,
    /// Instructions that a call of the handler took more in the second recording.
    #[serde(skip_serializing_if = "Exact::is_unset")]
    #[schemars(with = "Option<f64>")]
    pub change: Exact,
    /// Instructions a call that went from one function, or caller, to another.
    #[serde(skip_serializing_if = "Exact::is_unset")]
    #[schemars(with = "Option<f64>")]
    pub moved: Exact,
}

/// A difference of averages as a fraction: those of one handler have one denominator, the product of both numbers of
/// calls, and add up exactly. It is a number of floating point in files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exact {
    /// Instructions times calls of both recordings.
    pub numerator: i128,
    /// Calls of both recordings, multiplied; 0 where there is one recording alone.
    pub denominator: u128,
}

impl Exact {
    fn is_unset(&self) -> bool {
        self.denominator == 0
    }

    /// Instructions a call.
    pub fn per_call(self) -> f64 {
        if self.is_unset() { 0.0 } else { self.numerator as f64 / self.denominator as f64 }
    }
}

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.per_call())
    }
}

impl Explained {
    /// Whether it is of two recordings.
    pub fn is_difference(&self) -> bool {
        self.calls.len() == 2
    }

    /// `total` of a recording, as an average over the calls of the handler there.
    pub fn per_call(&self, recording: usize, total: u64) -> f64 {
        total as f64 / self.calls.get(recording).copied().unwrap_or(1).max(1) as f64
    }

    /// Instructions of all calls of the handler in a recording.
    pub fn total(&self, recording: usize) -> u64 {
        let root = self.nodes.first().and_then(|root| root.figures.get(recording));
        root.map_or(0, |figures| figures.inclusive)
    }

    /// How much more a call took from the first to the second of these totals.
    pub fn change(&self, totals: impl Fn(usize) -> u64) -> Exact {
        difference::change(&self.calls, totals)
    }
}
