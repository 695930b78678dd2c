//! What the handlers called, and the source lines that the instructions came from, where they were counted from
//! outside (`profiler lab --meter exact`). A tree of durations (`profiler explain --live`) is in no recording.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::is_bad_name;

/// Deepest tree that is read. A kernel stack of 16 KiB holds 2,048 return addresses.
const MAX_DEPTH: u32 = 4096;
/// Most instructions or calls in all; products of two such numbers, and their sums, are exact in 128 bits.
pub const MOST: u64 = 1 << 62;

/// Who called what, from each handler down through the kernel.
///
/// A function's part that was split off (`.cold`) counts as the function. Exceptions that a call caused are part of it;
/// interrupts that fell into it are in none of these figures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CallTree {
    /// The functions that ran.
    pub functions: Vec<TreeFunction>,
    /// Source lines, or addresses where no line is known.
    pub places: Vec<TreePlace>,
    /// Functions as they were called; a parent comes before what it called.
    pub nodes: Vec<TreeNode>,
}

/// A function that ran.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct TreeFunction {
    /// Its symbol.
    pub name: String,
    /// The module that holds it; `null` is the kernel image.
    pub module: Option<String>,
}

/// Where instructions lie in the driver.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct TreePlace {
    /// The function of the source that they are of, which the compiler may have put into another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The source file, as the compiler was given it; absent without debug information.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in it, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The line's text; of BPF programs alone, whose BTF has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Bytes from the symbol's address, where no line is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

/// A function as it was called by its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreeNode {
    /// Index of the caller's node; `null` for a handler that was called from outside of the handlers.
    pub parent: Option<u32>,
    /// Index in `functions`.
    pub function: u32,
    pub calls: u64,
    /// Instructions of the function itself, without what it called. One that repeats (`rep`) counts once.
    // Of a tree of durations: nanoseconds. Recordings have no such trees, so their field is named for instructions.
    #[serde(rename = "instructions")]
    pub own: u64,
    /// Iterations of those that repeat.
    pub iterations: u64,
    /// Instructions by index in `places`; of functions of the driver alone, whose `instructions` they add up to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<(u32, u64)>,
}

impl CallTree {
    /// Checks that all indexes lead somewhere and that the lines of each node add up.
    ///
    /// # Errors
    /// The first contradiction, in words.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.functions.iter().any(|it| is_bad_name(&it.name, it.module.as_ref())) {
            return Err("the name of a function is empty or too long".to_owned());
        }
        let mut depths: Vec<u32> = Vec::with_capacity(self.nodes.len());
        for (number, node) in self.nodes.iter().enumerate() {
            let depth = match node.parent {
                None => Some(0),
                // A parent that comes later has no depth yet.
                Some(parent) => depths.get(parent as usize).map(|depth| depth + 1),
            };
            match depth {
                None => return Err(format!("node {number} comes before its parent")),
                Some(depth) if depth > MAX_DEPTH => {
                    return Err(format!("has more than {MAX_DEPTH} calls within each other"));
                }
                Some(depth) => depths.push(depth),
            }
            if node.function as usize >= self.functions.len() {
                return Err(format!("node {number} is of a function that is not there"));
            }
            if node.lines.iter().any(|(place, _)| *place as usize >= self.places.len()) {
                return Err(format!("node {number} has a place that is not there"));
            }
            let mut counts = node.lines.iter().map(|(_, count)| *count);
            let sum = counts.try_fold(0_u64, u64::checked_add);
            if !node.lines.is_empty() && sum != Some(node.own) {
                let (name, all) = (&self.functions[node.function as usize].name, node.own);
                let sum = sum.unwrap_or(u64::MAX);
                return Err(format!(
                    "node {number}, {name}, has {all} instructions, and its lines {sum}"
                ));
            }
        }
        let figures: [fn(&TreeNode) -> u64; 3] =
            [|node| node.own, |node| node.calls, |node| node.iterations];
        for figure in figures {
            let sum = self.nodes.iter().map(figure).try_fold(0, u64::checked_add);
            if sum.is_none_or(|sum| sum > MOST) {
                return Err("has more calls or larger sums than can be".to_owned());
            }
        }
        Ok(())
    }
}
