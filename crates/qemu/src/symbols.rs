//! The functions of the guest's kernel, as its `/proc/kallsyms` names them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::arch::{self, Arch, Interrupt};

/// The module of BPF programs, whose names the measured program chooses.
const BPF: &str = "bpf";

/// Where a block's first instruction lies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    /// The function's index; that of the function that a `.cold` part was split from.
    pub(crate) function: u32,
    /// It is the function's first instruction.
    pub(crate) entry: bool,
    /// The interrupt or exception that begins here.
    pub(crate) interrupt: Option<Interrupt>,
    /// Calls of the function are recorded one by one.
    pub(crate) watched: bool,
    /// System calls are made in the function.
    pub(crate) system_call: bool,
    /// The function exchanges stacks.
    pub(crate) switch: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) address: u64,
    pub(crate) name: String,
    /// Empty for the kernel's own.
    pub(crate) module: String,
}

impl Function {
    /// Module and name of the function that a `.cold` part was split from.
    fn split_from(&self) -> Option<(&str, &str)> {
        let end = self.name.find(".cold").filter(|_| self.module != BPF)?;
        Some((&self.module, &self.name[..end]))
    }

    /// The name of the kernel's own code; empty for a module's function, whose name may be anything.
    pub(crate) fn own_name(&self) -> &str {
        if self.module.is_empty() { &self.name } else { "" }
    }
}

/// All functions, by address.
#[derive(Debug)]
pub(crate) struct Symbols {
    pub(crate) arch: &'static Arch,
    pub(crate) functions: Vec<Function>,
    places: Vec<(u64, BlockPlace)>,
    entry_text: Range<u64>,
    /// Where the CPU goes by a vector.
    vectors: HashMap<u64, Interrupt>,
    /// Where modules that are watched lie, if that is known, and their names.
    modules: Vec<(Range<u64>, String)>,
    /// Names of other functions that are watched.
    named: Vec<String>,
    /// Functions from here on were added.
    given: usize,
}

impl Symbols {
    /// Reads a line of a request; `None` if it is none.
    fn read(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), Some(second)) = (words.next(), words.next()) else { return Some(()) };
        match first {
            "module" => {
                let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
                let bytes = words.next().and_then(|word| word.parse().ok());
                let begin = address.unwrap_or_default();
                let range = begin..begin.saturating_add(bytes.unwrap_or_default());
                self.modules.push((range, second.to_owned()));
            }
            "function" => self.named.push(second.to_owned()),
            "vector" => {
                let address = u64::from_str_radix(words.next()?, 16).ok()?;
                let interrupt = (self.arch.vector)(second.parse().ok()?);
                self.vectors.extend(interrupt.map(|interrupt| (address, interrupt)));
            }
            _ => {
                let address = u64::from_str_radix(first, 16).ok()?;
                let name = words.next()?;
                let module = words.next().unwrap_or("").trim_matches(['[', ']']).to_owned();
                let kernel = module.is_empty();
                if kernel && name == arch::ENTRY_TEXT[0] {
                    self.entry_text.start = address;
                } else if kernel && name == arch::ENTRY_TEXT[1] {
                    self.entry_text.end = address;
                } else if matches!(second, "t" | "T" | "w" | "W")
                    // Of arm64: whether code or data follows.
                    && !(name.starts_with('$') || kernel && is_bound(name))
                {
                    let name = name.to_owned();
                    self.functions.push(Function { address, name, module });
                }
            }
        }
        Some(())
    }
}

/// Reads a request: the modules and functions to watch, and the kernel's symbols. Without any to watch only operations are
/// counted.
///
/// Lines `module NAME`, or `module NAME ADDRESS BYTES` as in `/proc/modules`, `function NAME`, and `vector NUMBER ADDRESS`, and those
/// of `/proc/kallsyms`.
///
/// # Errors
/// If a line is none of these, or there is none of the functions to watch.
pub(crate) fn parse(text: &str, arch: &'static Arch) -> Result<Symbols, String> {
    let mut symbols = Symbols {
        arch,
        functions: Vec::new(),
        places: Vec::new(),
        entry_text: 0..0,
        vectors: HashMap::new(),
        modules: Vec::new(),
        named: Vec::new(),
        given: 0,
    };
    for line in text.lines() {
        symbols.read(line).ok_or_else(|| format!("not a line of /proc/kallsyms: {line}"))?;
    }
    let Symbols { functions, modules, named, .. } = &mut symbols;
    // A function of the kernel that is counted as one of a module is the module's.
    functions.sort_by_key(|function| (function.address, function.module.is_empty()));
    functions.dedup_by_key(|function| function.address);
    // Of all names few are looked up, and each run waits for this.
    let split: HashSet<(&str, &str)> = functions.iter().filter_map(Function::split_from).collect();
    let whole: HashMap<(&str, &str), u32> = (0..)
        .zip(&*functions)
        .map(|(index, function)| ((&*function.module, &*function.name), index))
        .filter(|(name, _)| split.contains(name))
        .collect();
    let places = (0..).zip(&*functions).map(|(index, function)| {
        let name = function.own_name();
        let of = function.split_from().and_then(|name| whole.get(&name));
        let watched = (!function.module.is_empty()
            && modules.iter().any(|(_, name)| *name == function.module))
            || named.contains(&function.name);
        (
            function.address,
            BlockPlace {
                function: of.copied().unwrap_or(index),
                entry: of.is_none(),
                watched: watched && of.is_none(),
                system_call: (arch.is_system_call)(name),
                switch: !name.is_empty() && name == arch.switch,
                ..BlockPlace::default()
            },
        )
    });
    symbols.places = places.collect();
    let asked = symbols.modules.iter().map(|(_, name)| name).chain(&symbols.named);
    let asked: Vec<&str> = asked.map(String::as_str).collect();
    if !asked.is_empty() && !symbols.places.iter().any(|(_, place)| place.watched) {
        return Err(format!("no function of {} is in /proc/kallsyms", asked.join(", ")));
    }
    symbols.given = symbols.functions.len();
    Ok(symbols)
}

/// Names of addresses that are no functions and would hide one.
fn is_bound(name: &str) -> bool {
    matches!(name, "_text" | "_stext" | "_etext")
        || name.ends_with("_text_start")
        || name.ends_with("_text_end")
}

impl Symbols {
    /// Where `address` lies; `None` below the first function.
    pub(crate) fn place(&self, address: u64) -> Option<BlockPlace> {
        let after = self.places.partition_point(|(begin, _)| *begin <= address);
        let (begin, place) = *self.places.get(after.checked_sub(1)?)?;
        let function = &self.functions[place.function as usize];
        let interrupt = self.vectors.get(&address).copied();
        let interrupt =
            interrupt.or_else(|| (self.arch.interrupt)(function.own_name(), address - begin));
        // A tail call enters a BPF program behind its beginning.
        let tail_calls = if function.module == BPF { self.arch.tail_calls } else { &[] };
        let at = begin == address || tail_calls.contains(&(address - begin));
        Some(BlockPlace {
            entry: place.entry && at,
            interrupt,
            watched: place.watched && at,
            system_call: place.system_call && at,
            switch: place.switch && at,
            ..place
        })
    }

    /// First address and name of the watched module that an address is in.
    fn watched(&self, address: u64) -> Option<(u64, &str)> {
        let module = self.modules.iter().find(|(range, _)| range.contains(&address));
        module.map(|(range, name)| (range.start, &**name))
    }

    /// Whether it is in a module that is watched.
    pub(crate) fn is_watched(&self, address: u64) -> bool {
        self.watched(address).is_some()
    }

    /// Adds a function of a watched module that has no symbol: its name is its distance from the module's first byte.
    pub(crate) fn add(&mut self, address: u64) -> Option<BlockPlace> {
        let (begin, module) = self.watched(address)?;
        let module = module.to_owned();
        let name = format!("{:#x}", address - begin);
        let place = BlockPlace {
            function: self.functions.len() as u32,
            entry: true,
            watched: true,
            ..BlockPlace::default()
        };
        self.functions.push(Function { address, name, module });
        // Behind a part that begins there, so that the function is found and not added again.
        let at = self.places.partition_point(|(begin, _)| *begin <= address);
        self.places.insert(at, (address, place));
        Some(place)
    }

    /// As they were before any was added.
    pub(crate) fn without_added(mut self) -> Self {
        self.functions.truncate(self.given);
        self.places.retain(|(_, place)| (place.function as usize) < self.given);
        self
    }

    /// Whether code there is the kernel's entry: an `iret` there ends an interrupt, and what it calls is a system call.
    pub(crate) fn is_entry_text(&self, address: u64) -> bool {
        self.entry_text.contains(&address)
    }
}
