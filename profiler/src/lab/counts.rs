//! What the plugin in QEMU has counted: reads its file, which `profiler-qemu/src/report.rs` writes.
//!
//! Lines of words: `profiler-qemu 1`; `function ID ADDRESS NAME MODULE` (`-` is the kernel image); `calls FUNCTION ENTERED ENDED ABANDONED
//! INTERRUPTED INTERRUPTS ITERATIONS ORDERING`; `inclusive` and `own FUNCTION INSTRUCTIONS CALLS`; `node ID PARENT FUNCTION CALLS
//! INSTRUCTIONS ITERATIONS`; `code NODE TIMES ADDRESS SIZE...`, instructions one after the other by their sizes; `operation INSTRUCTIONS
//! TIMES`, of all system calls during an operation of the load; `within INSTRUCTIONS TIMES`, those of these that watched functions and
//! what they call took; `operations ITERATIONS ELSEWHERE`, of all operations: iterations in their system calls, and instructions of
//! watched functions meanwhile outside of these; `end`. Addresses are hexadecimal. The guest can write to the file, so nothing in it is
//! believed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// A function that ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Where it begins.
    pub address: u64,
    /// Its symbol.
    pub name: String,
    /// The module that holds it; `None` is the kernel image.
    pub module: Option<String>,
}

/// Calls of a function, counted one by one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Index of the caller's node; `None` for a call from outside.
    pub parent: Option<u32>,
    /// Its function's number.
    pub function: u32,
    /// Calls, instructions, iterations.
    pub sums: [u64; 3],
}

/// Instructions one after the other, in a node.
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
pub const MAX_BYTES: u64 = 64 << 20;

/// Largest number: instructions of a century at one a nanosecond.
const MOST: u64 = 1 << 62;

/// Longest line: QEMU's blocks have 512 instructions at most, and the kernel's names 511 bytes.
const MAX_LINE: usize = 4096;

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
/// If it is too large, or names the line that is not as it has to be.
pub fn parse(text: &str) -> Result<Counts, String> {
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("it has more than {} MiB", MAX_BYTES >> 20));
    }
    let mut counts = Counts::default();
    let mut lines = (1..).zip(text.lines());
    if lines.next().map(|(_, line)| line) != Some("profiler-qemu 1") {
        return Err("it does not begin with `profiler-qemu 1`".to_owned());
    }
    let mut ended = false;
    for (number, line) in lines {
        if line.len() > MAX_LINE {
            return Err(format!("line {number} is too long"));
        }
        if ended {
            return Err(format!("line {number} comes after the end"));
        }
        ended = counts.line(line).ok_or_else(|| format!("line {number} is not as it has to be"))?;
    }
    if !ended {
        return Err("its end is missing".to_owned());
    }
    if sum(&counts.operations) != sum(&counts.within) {
        return Err("its operations do not add up".to_owned());
    }
    match counts.calls.iter().find(|(_, calls)| !calls.add_up()) {
        Some((id, _)) => Err(format!("calls of {} do not add up", counts.functions[id].name)),
        None => Ok(counts),
    }
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
    /// Takes a line; whether it is the last. `None` if it is damaged.
    fn line(&mut self, line: &str) -> Option<bool> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["end"] => return Some(true),
            ["function", id, address, name, module] => {
                let function = Function {
                    address: u64::from_str_radix(address, 16).ok()?,
                    name: (*name).to_owned(),
                    module: (*module != "-").then(|| (*module).to_owned()),
                };
                self.functions.insert(id.parse().ok()?, function).is_none().then_some(())?;
            }
            ["node", id, parent, rest @ ..] => {
                // In their order, so that a parent is there before its children.
                let parent = if *parent == "-" { None } else { Some(self.node(parent)?) };
                let &[function, calls, instructions, iterations] = &*numbers(rest)? else {
                    return None;
                };
                let sums = [calls, instructions, iterations];
                let node = Node { parent, function: self.function(function)?, sums };
                (id.parse() == Ok(self.nodes.len())).then(|| self.nodes.push(node))?;
            }
            ["code", node, times, address, sizes @ ..] => {
                let sizes = sizes.iter().map(|size| size.parse().ok()).collect::<Option<_>>()?;
                let times = number(times)?;
                let address = u64::from_str_radix(address, 16).ok()?;
                self.code.push(Code { node: self.node(node)?, times, address, sizes });
            }
            [kind, rest @ ..] => self.numbers(kind, &numbers(rest)?)?,
            [] => return None,
        }
        Some(false)
    }

    /// Takes a line that has numbers alone.
    fn numbers(&mut self, kind: &str, numbers: &[u64]) -> Option<()> {
        match (kind, numbers) {
            ("calls", &[id, entered, ended, abandoned, interrupted, _, iterations, ordering]) => {
                let sums = Calls { entered, ended, abandoned, interrupted, ..Calls::default() };
                let calls = Calls { iterations, ordering, ..sums };
                self.calls.insert(self.function(id)?, calls).is_none().then_some(())
            }
            ("inclusive" | "own", &[id, instructions, times]) => {
                let calls = self.calls.get_mut(&u32::try_from(id).ok()?)?;
                let values = if kind == "own" { &mut calls.own } else { &mut calls.inclusive };
                values.push((instructions, times));
                Some(())
            }
            ("operation" | "within", &[instructions, times]) => {
                let of_within = kind == "within";
                let values = if of_within { &mut self.within } else { &mut self.operations };
                let ascends = values.last().is_none_or(|(last, _)| *last < instructions);
                (ascends && times > 0).then(|| values.push((instructions, times)))
            }
            ("operations", &[iterations, elsewhere]) => {
                self.of_operations = [iterations, elsewhere];
                Some(())
            }
            _ => None,
        }
    }

    fn function(&self, id: u64) -> Option<u32> {
        id.try_into().ok().filter(|id| self.functions.contains_key(id))
    }

    fn node(&self, id: &str) -> Option<u32> {
        id.parse().ok().filter(|id| (*id as usize) < self.nodes.len())
    }
}

fn number(word: &str) -> Option<u64> {
    word.parse().ok().filter(|number| *number <= MOST)
}

fn numbers(words: &[&str]) -> Option<Vec<u64>> {
    words.iter().map(|word| number(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "profiler-qemu 1\nfunction 7 ffffffffc0000000 bind_handler driver\nfunction 9 ffffffff81000000 memcpy -\n\
        calls 7 3 2 0 1 50 6 4\ninclusive 7 12 2\nown 7 9 2\nnode 0 - 7 3 27 0\nnode 1 0 9 2 6 1\n\
        code 0 3 ffffffffc0000000 1 4 3\noperation 9 4\noperation 12 1\nwithin 2 5\noperations 8 70\nend\n";

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
    fn what_a_guest_may_write_is_refused() {
        for (from, to, expected) in [
            ("profiler-qemu 1", "profiler-qemu 2", "it does not begin with `profiler-qemu 1`"),
            ("end\n", "", "its end is missing"),
            ("end\n", "end\nend\n", "line 15 comes after the end"),
            ("node 1 0 9", "node 1 1 9", "line 8 is not as it has to be"),
            ("node 1 0 9", "node 1 0 8", "line 8 is not as it has to be"),
            ("node 1 0", "node 2 0", "line 8 is not as it has to be"),
            ("operation 12", "operation 9", "line 11 is not as it has to be"),
            ("operation 12 1", "operation 12 0", "line 11 is not as it has to be"),
            ("within 2 5", "within 2 4", "its operations do not add up"),
            ("operations 8 70", "operations 8", "line 13 is not as it has to be"),
            ("code 0", "code 2", "line 9 is not as it has to be"),
            ("inclusive 7", "inclusive 9", "line 5 is not as it has to be"),
            ("calls 7 3 2 0 1 50 6 4", "calls 7 3 2 0 1 50 6", "line 4 is not as it has to be"),
            ("12 2", "-12 2", "line 5 is not as it has to be"),
            ("12 2", "9223372036854775807 2", "line 5 is not as it has to be"),
            ("function 9", "function 7", "line 3 is not as it has to be"),
            ("own 7 9 2", "calls 7 3 2 0 1 50 6 4", "line 6 is not as it has to be"),
            ("12 2", "12 3", "calls of bind_handler do not add up"),
            ("own 7 9 2", "own 7 9 1", "calls of bind_handler do not add up"),
            ("7 3 2 0 1 50", "7 3 2 2 1 50", "calls of bind_handler do not add up"),
            ("1 4 3\n", &" 1".repeat(2048), "line 9 is too long"),
        ] {
            let text = TEXT.replacen(from, to, 1);
            assert_eq!(parse(&text), Err(expected.to_owned()), "{from} -> {to}");
        }
    }
}
