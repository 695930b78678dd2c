//! What the plugin in QEMU has counted: reads its file, which `crates/qemu/src/report.rs` writes.
//!
//! It is [`Counts`] as JSON, in which functions, nodes and code are lists of their fields. What a driver does decides what is in it, so
//! it is checked; sums are checked with the recording that they go to.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::Deserialize;

/// A function that ran.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// Where it begins.
    pub address: u64,
    /// Its symbol.
    pub name: String,
    /// The module that holds it; `None` is the kernel image.
    pub module: Option<String>,
}

/// Calls of a function, counted one by one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calls {
    /// Calls that began.
    pub entered: u64,
    /// Calls that returned.
    pub ended: u64,
    /// Calls whose stack was left without a return.
    pub abandoned: u64,
    /// Calls into which an interrupt or exception fell.
    pub interrupted: u64,
    /// Iterations of instructions that repeat, in the calls that returned and in what these called.
    pub iterations: u64,
    /// Instructions that order others, in the same calls.
    pub ordering: u64,
    /// Instructions of a call, with how many calls took so many.
    pub inclusive: Vec<(u64, u64)>,
    /// The same for instructions of the function itself.
    pub own: Vec<(u64, u64)>,
}

/// A function as it was called by its parent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Index of the caller's node; `None` for a call from outside.
    pub parent: Option<u32>,
    /// Its function's number.
    pub function: u32,
    /// Calls, instructions, iterations.
    pub sums: [u64; 3],
}

/// Instructions one after the other, in a node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// Index of the node.
    pub node: u32,
    /// How often they ran.
    pub times: u64,
    /// Where the first one lies.
    pub address: u64,
    /// Bytes of each.
    pub sizes: Vec<u8>,
}

/// All that was counted in a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Functions that ran, by number.
    pub functions: HashMap<u32, Function>,
    /// Calls of the functions that were watched, by their number.
    pub calls: HashMap<u32, Calls>,
    /// Who called what; a parent comes before its children.
    pub nodes: Vec<Node>,
    /// The instructions of the driver.
    pub code: Vec<Code>,
    /// Instructions of all system calls during an operation of the load, ascending, with how many operations took so many.
    pub operations: Vec<(u64, u64)>,
    /// The same for those of these instructions that watched functions and what they call took.
    pub within: Vec<(u64, u64)>,
    /// Iterations in the system calls of all operations, and instructions of watched functions outside of system calls meanwhile.
    pub of_operations: [u64; 2],
}

/// Largest file, which may take twenty times as much memory. The testbed's two connect handlers take 9 KiB.
const MAX_BYTES: u64 = 64 << 20;

/// The text of a file, of which no more is read than it takes to see that it is too large.
///
/// # Errors
/// If it cannot be read.
pub(super) fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// Reads the file's text.
///
/// # Errors
/// If it is too large, is not as it has to be, or contradicts itself.
pub fn parse(text: &str) -> Result<Counts, String> {
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("it has more than {} MiB", MAX_BYTES >> 20));
    }
    let counts: Counts = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if !counts.names_what_is_there() {
        return Err("it names a function or a node that is not there".to_owned());
    }
    if !ascends(&counts.operations) || !ascends(&counts.within) {
        return Err("its operations are not in order".to_owned());
    }
    if sum(&counts.operations) != sum(&counts.within) {
        return Err("its operations do not add up".to_owned());
    }
    match counts.calls.iter().find(|(_, calls)| !calls.add_up()) {
        Some((id, _)) => Err(format!("calls of {} do not add up", counts.functions[id].name)),
        None => Ok(counts),
    }
}

/// Whether a distribution has each value once, in order, and each was there.
fn ascends(values: &[(u64, u64)]) -> bool {
    values.is_sorted_by(|one, next| one.0 < next.0) && values.iter().all(|(_, times)| *times > 0)
}

/// Calls or operations in a distribution.
pub(super) fn sum(values: &[(u64, u64)]) -> u64 {
    values.iter().fold(0, |sum, (_, times)| sum.saturating_add(*times))
}

impl Calls {
    /// Each call that ended is in both distributions.
    fn add_up(&self) -> bool {
        self.ended.saturating_add(self.abandoned) <= self.entered
            && [&self.inclusive, &self.own].iter().all(|values| sum(values) == self.ended)
    }
}

impl Counts {
    /// Whether all functions and nodes are there that others name, and each node's parent is before it.
    fn names_what_is_there(&self) -> bool {
        let nodes = (0..).zip(&self.nodes);
        let of_nodes = nodes.clone().map(|(_, node)| &node.function);
        self.calls.keys().chain(of_nodes).all(|id| self.functions.contains_key(id))
            && nodes.clone().all(|(at, node)| node.parent.is_none_or(|parent| parent < at))
            && self.code.iter().all(|code| (code.node as usize) < self.nodes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
        "functions": {"7": [18446744072635809792, "bind_handler", "driver"], "9": [18446744071578845184, "memcpy", null]},
        "calls": {"7": {"entered": 3, "ended": 2, "abandoned": 0, "interrupted": 1, "iterations": 6, "ordering": 4,
            "inclusive": [[12, 2]], "own": [[9, 2]]}},
        "nodes": [[null, 7, [3, 27, 0]], [0, 9, [2, 6, 1]]],
        "code": [[0, 3, 18446744072635809792, [1, 4, 3]]],
        "operations": [[9, 4], [12, 1]],
        "within": [[2, 5]],
        "of_operations": [8, 70]
    }"#;

    #[test]
    fn a_file_is_read() {
        let counts = parse(TEXT).unwrap();
        let calls = &counts.calls[&7];
        assert_eq!((calls.entered, calls.ended, &calls.inclusive[..]), (3, 2, &[(12, 2)][..]));
        assert_eq!(counts.nodes[1], Node { parent: Some(0), function: 9, sums: [2, 6, 1] });
        assert_eq!(counts.functions[&9].module, None);
        assert_eq!(counts.code[0].sizes, [1, 4, 3]);
        assert_eq!((calls.iterations, calls.ordering, counts.of_operations), (6, 4, [8, 70]));
        assert_eq!(counts.operations, [(9, 4), (12, 1)]);
        assert_eq!(counts.within, [(2, 5)]);
    }

    #[test]
    fn no_more_is_read_than_is_parsed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MAX_BYTES + 100).unwrap();
        let text = read(file.path()).unwrap();
        assert_eq!(text.len() as u64, MAX_BYTES + 1);
        assert_eq!(parse(&text), Err("it has more than 64 MiB".to_owned()));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let absent = "it names a function or a node that is not there";
        let unordered = "its operations are not in order";
        for (from, to, expected) in [
            ("\n    }", "", "EOF while parsing an object at line 9 column 32"),
            ("\n    }", "\n    }}", "trailing characters at line 10 column 6"),
            ("[0, 9, [2", "[1, 9, [2", absent),
            ("[0, 9, [2", "[0, 8, [2", absent),
            ("[[0, 3", "[[2, 3", absent),
            (r#""7": {"#, r#""8": {"#, absent),
            ("[12, 1]", "[9, 1]", unordered),
            ("[[9, 4], [12, 1]]", "[[9, 4], [12, 0]]", unordered),
            ("[[2, 5]]", "[[2, 4]]", "its operations do not add up"),
            ("[[12, 2]]", "[[12, 3]]", "calls of bind_handler do not add up"),
            ("[[9, 2]]", "[[9, 1]]", "calls of bind_handler do not add up"),
            (r#""abandoned": 0"#, r#""abandoned": 2"#, "calls of bind_handler do not add up"),
        ] {
            let text = TEXT.replacen(from, to, 1);
            assert_eq!(parse(&text), Err(expected.to_owned()), "{from} -> {to}");
        }
        for (from, to) in [
            ("[8, 70]", "[8]"),
            ("[2, 6, 1]", "[2, 6, -1]"),
            ("[1, 4, 3]", "[1, 256, 3]"),
            (r#""within": [[2, 5]],"#, ""),
            (r#""ended": 2,"#, ""),
            (r#""nodes""#, r#""node""#),
        ] {
            parse(&TEXT.replacen(from, to, 1)).unwrap_err();
        }
    }
}
