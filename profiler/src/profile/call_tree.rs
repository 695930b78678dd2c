//! What the handlers called, and the source lines that the instructions came from, where they were counted from
//! outside (`profiler lab --meter exact`).

use serde::{Deserialize, Serialize};

/// Who called what, from each handler down through the kernel.
///
/// A function's part that was split off (`.cold`) counts as the function. Interrupts and exceptions that fell into a
/// call are in none of these figures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CallTree {
    /// The functions that ran.
    pub functions: Vec<TreeFunction>,
    /// Source lines, or addresses where no line is known.
    pub places: Vec<TreePlace>,
    /// Functions as they were called; a parent comes before what it called.
    pub nodes: Vec<TreeNode>,
}

/// A function that ran.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TreeFunction {
    /// Its symbol.
    pub name: String,
    /// The module that holds it; `null` is the kernel image.
    pub module: Option<String>,
}

/// Where instructions lie in the driver.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Bytes from the symbol's address, where no line is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

/// A function as it was called by its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TreeNode {
    /// Index of the caller's node; `null` for a handler that was called from outside of the handlers.
    pub parent: Option<u32>,
    /// Index in `functions`.
    pub function: u32,
    /// Calls.
    pub calls: u64,
    /// Instructions of the function itself, without what it called. One that repeats (`rep`) counts once.
    pub instructions: u64,
    /// Reads of memory by these.
    pub loads: u64,
    /// Writes.
    pub stores: u64,
    /// Iterations of those that repeat.
    pub iterations: u64,
    /// Instructions by index in `places`; of functions of the driver alone, whose `instructions` they add up to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<(u32, u64)>,
}
