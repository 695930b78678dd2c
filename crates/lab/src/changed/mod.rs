//! What differs between two builds of a driver, by their files: code and data under their names, wherever they lie.
//!
//! A file is cut into *pieces*: functions, objects, and nameless stretches such as the table of a `switch`. The digest of a piece has
//! its bytes, and in place of each address what lies there: a name and an offset, a string, or the digest of a nameless piece.

mod arm64;
mod x86;

use std::borrow::Borrow;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::fmt::Write as _;
use std::path::Path;

use object::{
    Architecture, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags,
    RelocationKind, RelocationTarget, SectionFlags, SectionKind, SymbolKind, elf,
};
use sha2::{Digest as _, Sha256};

use profiler_base::text::{listed, plural};

/// Beginnings of the names of sections that follow from the code, name the build, or hold the lines of warnings.
const DERIVED: [&str; 14] = [
    ".modinfo",
    ".note",
    "__versions",
    ".orc_",
    "__mcount_loc",
    ".return_sites",
    ".retpoline_sites",
    ".call_sites",
    ".ibt_endbr_seal",
    ".cfi_sites",
    "__patchable_function_entries",
    "__bug_table",
    ".BTF",
    ".discard",
];

/// So many nameless pieces within each other are followed; a deeper one counts as its section's name and its offset.
const DEEPEST: usize = 32;

/// A section's number, and an offset there.
type Place = (usize, u64);

/// What differs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    /// Functions of which code or data that they use differ, and those that one build alone has.
    pub functions: BTreeSet<String>,
    /// Whether something else differs: code that runs at load or unload, or data that no function refers to, or a piece without a name that nothing
    /// refers to.
    pub rest: bool,
    /// All functions, with those that each calls, and keys of nameless code that runs as a part of them. One whose address it passes on
    /// is a handler of its own.
    pub(super) calls: BTreeMap<String, BTreeSet<String>>,
}

impl Changed {
    /// Compares pairs of files; `None` if one is damaged, neither for x86-64 nor for arm64, or without names of functions.
    pub fn between<'a>(pairs: impl IntoIterator<Item = (&'a Path, &'a Path)>) -> Option<Self> {
        let mut all = Self::default();
        for (base, candidate) in pairs {
            let base = Build::parse(&std::fs::read(base).ok()?)?;
            let candidate = Build::parse(&std::fs::read(candidate).ok()?)?;
            let of_pair = Self::of(&base, &candidate);
            all.functions.extend(of_pair.functions);
            all.rest |= of_pair.rest;
            for (name, calls) in of_pair.calls {
                all.calls.entry(name).or_default().extend(calls);
            }
        }
        Some(all).filter(|all| !all.calls.is_empty())
    }

    /// Whether both builds do the same.
    pub fn is_nothing(&self) -> bool {
        self.functions.is_empty() && !self.rest
    }

    /// For the plan and the report: how many functions differ, which, and whether something else does.
    pub fn words(&self) -> String {
        let (count, total) = (self.functions.len(), self.calls.len());
        let mut text = format!("{count} of {total} function{}", plural(total));
        text.push_str(if count == 1 || total == 1 { " differs" } else { " differ" });
        if count > 0 {
            let _ = write!(text, ": {}", listed(&Vec::from_iter(&self.functions)));
        }
        if self.rest {
            text.push_str(
                "; code that loads the driver, or data that no function refers to, differs",
            );
        }
        text
    }

    /// The functions that `handler` may run, and itself.
    pub fn reached_from<'a>(&'a self, handler: &'a str) -> BTreeSet<&'a str> {
        reachable([handler], &self.calls)
    }

    fn of(base: &Build, candidate: &Build) -> Self {
        let [mut functions, mut once, mut data]: [BTreeSet<&str>; 3] = Default::default();
        let mut calls: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let items = || base.items.iter().chain(&candidate.items);
        for (name, item) in items() {
            if !item.is_code {
                data.insert(name.as_str());
            } else if item.is_once {
                once.insert(name.as_str());
            } else {
                functions.insert(name.as_str());
                let names = item.calls.iter().map(|name| plain(name).to_owned());
                calls.entry(plain(name).to_owned()).or_default().extend(names);
            }
        }
        let [mut data_of, mut users]: [BTreeMap<&str, BTreeSet<&str>>; 2] = Default::default();
        for (name, item) in items() {
            for used in item.uses.iter().filter(|used| data.contains(used.as_str())) {
                data_of.entry(name).or_default().insert(used);
                users.entry(used).or_default().insert(name);
            }
        }
        let is_other = |name: &&str| {
            let [was, is] = [base, candidate].map(|of| Some(&of.items.get(*name)?.digest));
            was != is
        };
        // What refers to data that differs, differs too, over any number of steps.
        let all = functions.iter().chain(&once).chain(&data).copied();
        let differing = reachable(all.filter(is_other), &users);
        let used = reachable(functions.iter().copied(), &data_of);
        Self {
            functions: functions.intersection(&differing).map(|it| plain(it).to_owned()).collect(),
            rest: base.unreferenced != candidate.unreferenced
                || once.iter().chain(data.difference(&used)).any(|it| differing.contains(it)),
            calls,
        }
    }
}

/// What is reached by `next` from `start`, with that itself.
fn reachable<'a, Name: Ord + Borrow<str>>(
    start: impl IntoIterator<Item = &'a str>,
    next: &'a BTreeMap<Name, BTreeSet<Name>>,
) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = Vec::from_iter(start);
    while let Some(name) = open.pop() {
        if reached.insert(name) {
            open.extend(next.get(name).into_iter().flatten().map(Borrow::borrow));
        }
    }
    reached
}

/// The function's name without suffixes for parts that the compiler has moved (`.cold`) and for duplicates (`#2`).
fn plain(name: &str) -> &str {
    let name = name.split_once('#').map_or(name, |(name, _)| name);
    name.split_once(".cold").map_or(name, |(name, _)| name)
}

/// What stands for a piece without a name among those that have one: no ELF name has this byte.
fn nameless_key(digest: &str) -> String {
    format!("\0{digest}")
}

/// A file's pieces.
#[derive(Debug, Default)]
pub(super) struct Build {
    /// By name, and by [key](nameless_key) those without a name that others refer to.
    items: BTreeMap<String, Item>,
    /// Functions whose address is stored in data or taken by code.
    pub(super) given_away: BTreeSet<String>,
    /// Digests of nameless pieces that no other piece refers to, sorted.
    unreferenced: Vec<String>,
}

/// What is known of a piece.
#[derive(Debug, Clone, Default)]
struct Item {
    digest: String,
    /// The pieces that it refers to.
    uses: BTreeSet<String>,
    /// The functions that it calls, jumps to or takes an address of relative to the code.
    calls: BTreeSet<String>,
    is_code: bool,
    /// It runs when the driver is loaded or unloaded.
    is_once: bool,
}

/// An address in a section's bytes.
struct Fix {
    /// Bytes that are the address, or have it in them.
    width: u64,
    /// How they have it: a relocation's type, or the instruction without it.
    form: u32,
    /// Whether code goes there, or its address is taken relative to the code.
    goes: bool,
    target: Target,
}

enum Target {
    Here(Place),
    /// A symbol of the kernel, and an offset.
    Outside(String, i64),
}

struct Section<'a> {
    number: usize,
    architecture: Architecture,
    name: &'a str,
    is_code: bool,
    /// It runs when the driver is loaded or unloaded.
    is_once: bool,
    is_strings: bool,
    is_read_only: bool,
    /// Neither code nor data: tables whose entries begin with the address of the code that they are of.
    is_table: bool,
    size: u64,
    bytes: &'a [u8],
    fixes: BTreeMap<u64, Fix>,
    /// Ends and names, by begin.
    pieces: BTreeMap<u64, (u64, Option<String>)>,
}

struct Reader<'a> {
    sections: BTreeMap<usize, Section<'a>>,
    /// Pieces without a name that others refer to.
    known: RefCell<BTreeMap<Place, Item>>,
}

impl Build {
    /// `None` if a file is damaged, or neither for x86-64 nor for arm64.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let file = object::File::parse(bytes).ok()?;
        if !matches!(file.architecture(), Architecture::X86_64 | Architecture::Aarch64) {
            return None;
        }
        let sections = file.sections().filter_map(|section| Section::read(&file, &section));
        let sections = sections.map(|section| (section.number, section)).collect();
        let mut reader = Reader { sections, known: RefCell::default() };
        reader.add_named(&file);
        reader.sections.values_mut().filter(|section| section.is_code).for_each(Section::decode);
        reader.add_gaps();
        Some(reader.build())
    }

    /// All functions but those that run when the driver is loaded or unloaded.
    pub(super) fn functions(&self) -> impl Iterator<Item = &str> {
        let functions = self.items.iter().filter(|(_, item)| item.is_code && !item.is_once);
        functions.map(|(name, _)| plain(name))
    }
}

impl<'a> Section<'a> {
    fn read(file: &object::File<'a>, section: &object::Section<'a, '_>) -> Option<Self> {
        let name = section.name().ok()?;
        let SectionFlags::Elf { sh_flags } = section.flags() else { return None };
        let has = |flag: u32| sh_flags & u64::from(flag) != 0;
        if !has(elf::SHF_ALLOC) || DERIVED.iter().any(|derived| name.starts_with(derived)) {
            return None;
        }
        let architecture = file.architecture();
        let is_arm64 = architecture == Architecture::Aarch64;
        let mut fixes = BTreeMap::new();
        for (at, relocation) in section.relocations() {
            let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
            let symbol = file.symbol_by_index(symbol).ok()?;
            let addend = relocation.addend();
            let target = match symbol.section_index() {
                Some(section) => {
                    Target::Here((section.0, symbol.address().wrapping_add_signed(addend)))
                }
                None => Target::Outside(symbol.name().ok()?.to_owned(), addend),
            };
            let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            let (width, form, goes) = match relocation.kind() {
                // An instruction: the bits of the address in it are zero, so nothing is blanked out.
                _ if is_arm64 && !arm64::is_data(r_type) => (0, r_type, arm64::goes(r_type)),
                RelocationKind::PltRelative => (4, elf::R_X86_64_PC32, true),
                kind => (relocation.size() / 8, r_type, kind == RelocationKind::Relative),
            };
            fixes.insert(at, Fix { width: width.into(), form, goes, target });
        }
        let is_code = section.kind() == SectionKind::Text;
        Some(Self {
            number: section.index().0,
            architecture,
            name,
            is_code,
            is_once: [".init", ".exit"].iter().any(|of| name.starts_with(of)),
            is_strings: has(elf::SHF_STRINGS),
            is_read_only: !has(elf::SHF_WRITE),
            is_table: !is_code
                && ![".data", ".rodata", ".bss"].iter().any(|of| name.starts_with(of)),
            size: section.size(),
            bytes: section.data().ok()?,
            fixes,
            pieces: BTreeMap::new(),
        })
    }

    /// The end of the piece there, its bytes, and the addresses in these.
    fn piece(&self, begin: u64) -> (u64, &[u8], btree_map::Range<'_, u64, Fix>) {
        let end = self.pieces.get(&begin).map_or(begin, |(end, _)| *end);
        let bytes = self.bytes.get(begin as usize..end as usize).unwrap_or_default();
        (end, bytes, self.fixes.range(begin..end))
    }

    /// Whether the piece there is padding.
    fn is_padding(&self, begin: u64) -> bool {
        let (_, bytes, mut fixes) = self.piece(begin);
        let is_padding = match (self.is_code, self.architecture) {
            (false, _) => bytes.iter().all(|byte| *byte == 0),
            (true, Architecture::Aarch64) => arm64::is_padding(bytes),
            (true, _) => x86::is_padding(bytes),
        };
        is_padding && fixes.next().is_none()
    }

    /// Finds addresses in code that have no relocation, and corrects those that are relative to the next instruction.
    fn decode(&mut self) {
        // Replacements of instructions (`.altinstr_replacement`) have no names.
        let whole = self.pieces.is_empty().then_some((0, self.size));
        let named = self.pieces.iter().map(|(begin, (end, _))| (*begin, *end));
        for (begin, end) in named.chain(whole).collect::<Vec<_>>() {
            match self.architecture {
                Architecture::Aarch64 => arm64::decode(self, begin, end),
                _ => x86::decode(self, begin, end),
            }
        }
    }
}

impl Reader<'_> {
    /// Adds the pieces that symbols name.
    fn add_named(&mut self, file: &object::File<'_>) {
        let mut symbols = Vec::new();
        for symbol in file.symbols() {
            let (Some(section), Ok(name)) = (symbol.section_index(), symbol.name()) else {
                continue;
            };
            // arm64 marks where code and data begin by `$x` and `$d`.
            let is_named = !matches!(symbol.kind(), SymbolKind::Section | SymbolKind::File)
                && !name.starts_with('$');
            // The padding before a function, if the kernel wants some.
            if is_named && !name.is_empty() && !profiler_kernel::names::is_padding(name) {
                symbols.push((section.0, symbol.address(), Reverse(symbol.size()), name));
            }
        }
        symbols.sort_unstable();
        let mut count: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, &(number, begin, Reverse(size), name)) in symbols.iter().enumerate() {
            let Some(section) = self.sections.get_mut(&number) else { continue };
            let last = section.pieces.last_key_value().map_or(0, |(_, (end, _))| *end);
            if section.is_strings || begin < last || begin >= section.size {
                continue;
            }
            let next = symbols.get(index + 1).filter(|next| next.0 == number).map(|next| next.1);
            let end = match size {
                0 => next.unwrap_or(section.size),
                size => begin.saturating_add(size),
            };
            let count = count.entry(name).or_default();
            *count += 1;
            // The compiler numbers constants of functions, such as `__func__.7`, and the next number is no change.
            let is_numbered =
                name.rsplit_once('.').is_some_and(|(_, end)| end.parse::<u32>().is_ok());
            let name = match count {
                _ if name.starts_with("__UNIQUE_ID") => None,
                _ if !section.is_code && section.is_read_only && is_numbered => None,
                1 => Some(name.to_owned()),
                more => Some(format!("{name}#{more}")),
            };
            section.pieces.insert(begin, (end.min(section.size), name));
        }
    }

    /// Adds what lies between: at each address that is referred to, after each piece, and each entry of a table.
    fn add_gaps(&mut self) {
        let mut begins: BTreeSet<Place> = BTreeSet::new();
        for (&number, section) in &self.sections {
            for (&at, fix) in &section.fixes {
                let Target::Here(place) = &fix.target else { continue };
                begins.insert(*place);
                // A replacement of instructions (`.altinstr_replacement`) begins no entry.
                let code = self.sections.get(&place.0).filter(|it| it.is_code);
                if section.is_table && code.is_some_and(|it| !it.pieces.is_empty()) {
                    begins.insert((number, at));
                }
            }
            begins.insert((number, 0));
            begins.extend(section.pieces.values().map(|(end, _)| (number, *end)));
        }
        for &(number, begin) in begins.iter().rev() {
            let Some(section) = self.sections.get_mut(&number) else { continue };
            let covered =
                section.pieces.range(..=begin).next_back().map_or(0, |(_, (end, _))| *end);
            if section.is_strings || begin >= section.size || begin < covered {
                continue;
            }
            let end = section.pieces.range(begin..).next().map_or(section.size, |(at, _)| *at);
            section.pieces.insert(begin, (end, None));
        }
    }

    /// What stands for a place in a digest. Adds the piece that it lies in to `uses`; one without a name by its digest alone, as a table
    /// may have thousands of names in it.
    fn word(&self, (number, at): Place, uses: &mut BTreeSet<String>, depth: usize) -> String {
        let Some(section) = self.sections.get(&number) else { return format!("{number}+{at}") };
        if section.is_strings {
            let bytes = section.bytes.get(at as usize..).unwrap_or_default();
            return format!("{:?}", bytes.split(|byte| *byte == 0).next());
        }
        match section.pieces.range(..=at).next_back() {
            Some((begin, (end, Some(name)))) if at < *end => {
                uses.insert(name.clone());
                format!("{name}+{}", at - begin)
            }
            Some((&begin, (end, None))) if at < *end && depth < DEEPEST => {
                let digest = self.nameless_digest((number, begin), depth + 1);
                uses.insert(nameless_key(&digest));
                format!("{digest}+{}", at - begin)
            }
            _ => format!("{}+{at}", section.name),
        }
    }

    /// The digest of a piece without a name that another refers to.
    fn nameless_digest(&self, place: Place, depth: usize) -> String {
        if let Some(known) = self.known.borrow().get(&place) {
            return known.digest.clone();
        }
        // So that a piece that refers to itself ends: its digest counts as empty there.
        self.known.borrow_mut().insert(place, Item::default());
        let item = self.item(place, depth);
        let digest = item.digest.clone();
        self.known.borrow_mut().insert(place, item);
        digest
    }

    fn item(&self, place: Place, depth: usize) -> Item {
        let (section, begin) = (&self.sections[&place.0], place.1);
        let (end, bytes, fixes) = section.piece(begin);
        let mut bytes = bytes.to_vec();
        let (is_code, is_once) = (section.is_code, section.is_once);
        let mut item = Item { is_code, is_once, ..Item::default() };
        let mut words = match section.is_code {
            true => String::new(),
            false => format!("{} {}", section.name, end - begin),
        };
        for (at, Fix { width, form, goes, target }) in fixes {
            let from = (at - begin) as usize;
            if let Some(bytes) = bytes.get_mut(from..from + *width as usize) {
                bytes.fill(0);
            }
            item.calls.extend(self.function(target).filter(|_| section.is_code && *goes));
            let target = match target {
                Target::Here(place) => self.word(*place, &mut item.uses, depth),
                Target::Outside(name, offset) => format!("{name} {offset}"),
            };
            let _ = write!(words, "\n{from} {form} {goes} {width} {target}");
        }
        let hash = Sha256::new().chain_update(&words).chain_update([0]).chain_update(bytes);
        item.digest = format!("{:x}", hash.finalize());
        item
    }

    /// All pieces. An entry of a table is a part of the function that it begins with.
    fn build(&self) -> Build {
        let mut build = Build::default();
        let (mut unreferenced, mut entries) = (Vec::new(), Vec::new());
        for (&number, section) in &self.sections {
            let taken = section.fixes.values().filter_map(|fix| self.taken(section, fix));
            build.given_away.extend(taken);
            for (&begin, (_, name)) in &section.pieces {
                let place = (number, begin);
                if let Some(name) = name {
                    build.items.insert(name.clone(), self.item(place, 0));
                } else if let Some(owner) = self.owner(place) {
                    let Item { digest, uses, .. } = self.item(place, 0);
                    entries.push((owner, digest, uses));
                } else if !section.is_padding(begin) {
                    unreferenced.push(place);
                }
            }
        }
        entries.sort();
        for (owner, digest, uses) in entries {
            if let Some(item) = build.items.get_mut(&owner) {
                item.digest.push_str(&digest);
                // A replacement of instructions runs as a part of the function: its key is followed below.
                item.calls.extend(uses.iter().cloned());
                item.uses.extend(uses);
            }
        }
        // The others are known by now: they are parts of those that refer to them.
        unreferenced.retain(|place| !self.known.borrow().contains_key(place));
        build.unreferenced =
            unreferenced.into_iter().map(|place| self.item(place, 0).digest).collect();
        build.unreferenced.sort();
        let known = self.known.take().into_values();
        let known = Vec::from_iter(known.map(|item| (nameless_key(&item.digest), item)));
        // Code without a name, such as a replacement of instructions, runs as a part of what refers to it.
        let mut parts: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (key, item) in known.iter().filter(|(_, item)| item.is_code) {
            let keys = item.uses.iter().filter(|used| used.starts_with('\0'));
            parts.insert(key, item.calls.iter().chain(keys).map(String::as_str).collect());
        }
        for item in build.items.values_mut().filter(|item| item.is_code) {
            let own = item.uses.iter().map(String::as_str).filter(|used| parts.contains_key(used));
            let reached = reachable(own, &parts);
            item.calls.extend(reached.into_iter().map(str::to_owned));
        }
        // For a comparison they are data: who refers to one that differs, differs.
        let known = known.into_iter().map(|(key, item)| (key, Item { is_code: false, ..item }));
        build.items.extend(known);
        build
    }

    /// The function whose whole address this is. Tables of the kernel's own have addresses of functions, too, but nothing is
    /// called through them.
    fn taken(&self, section: &Section<'_>, fix: &Fix) -> Option<String> {
        let is_whole = match (section.is_code, fix.width) {
            // arm64 takes an address by two instructions.
            (true, 0) => fix.form == elf::R_AARCH64_ADD_ABS_LO12_NC,
            (true, width) => width == 4 && !fix.goes,
            (false, width) => width == 8 && !section.is_table,
        };
        let Target::Here((number, at)) = &fix.target else { return None };
        let code = self.sections.get(number).filter(|it| it.is_code && !it.is_once)?;
        let (_, name) = code.pieces.get(at).filter(|_| is_whole)?;
        name.as_deref().filter(|name| !name.contains(".cold")).map(|name| plain(name).to_owned())
    }

    /// The function that an entry of a table is of.
    fn owner(&self, (number, at): Place) -> Option<String> {
        let section = self.sections.get(&number).filter(|section| section.is_table)?;
        self.function(&section.fixes.get(&at)?.target)
    }

    fn function(&self, target: &Target) -> Option<String> {
        let Target::Here((number, at)) = target else { return None };
        let code = self.sections.get(number).filter(|section| section.is_code)?;
        let (_, (end, name)) = code.pieces.range(..=at).next_back()?;
        name.clone().filter(|_| at < end)
    }
}

#[cfg(test)]
mod tests {
    use object::write::{Object, Relocation, SectionId, StandardSegment, Symbol, SymbolSection};
    use object::{BinaryFormat, Endianness, RelocationFlags, SymbolFlags, SymbolScope};

    use super::*;

    /// A relocation: where, of which type, to what, and how far from there.
    type Link = (u64, u32, &'static str, i64);

    /// A function or an object: its section, name, bytes and addresses.
    type Part = (&'static str, &'static str, &'static [u8], &'static [Link]);

    const PLT: u32 = elf::R_X86_64_PLT32;
    const PC: u32 = elf::R_X86_64_PC32;
    const ADDRESS: u32 = elf::R_X86_64_32S;
    const WORD: u32 = elf::R_X86_64_64;

    fn section(file: &mut Object<'_>, name: &str) -> SectionId {
        let kind = match name {
            _ if name.contains("text") || name.contains("replacement") => SectionKind::Text,
            _ if name.starts_with(".rodata.str") => SectionKind::ReadOnlyString,
            _ if name.starts_with(".data") => SectionKind::Data,
            _ => SectionKind::ReadOnlyData,
        };
        let segment = file.segment_name(StandardSegment::Data).to_vec();
        file.add_section(segment, name.into(), kind)
    }

    fn file(parts: &[Part]) -> Vec<u8> {
        file_for(Architecture::X86_64, parts)
    }

    /// A file of parts, one after another. As gas does, it names what is defined there by section and offset.
    fn file_for(architecture: Architecture, parts: &[Part]) -> Vec<u8> {
        let mut file = Object::new(BinaryFormat::Elf, architecture, Endianness::Little);
        let (mut sections, mut places) = (BTreeMap::new(), BTreeMap::new());
        for (of, name, bytes, _) in parts {
            let id = *sections.entry(*of).or_insert_with(|| section(&mut file, of));
            let value = file.append_section_data(id, bytes, 1);
            places.insert(*name, (id, value));
            let kind = if of.contains("text") { SymbolKind::Text } else { SymbolKind::Data };
            if !name.starts_with('(') {
                let name = name.as_bytes().to_vec();
                let (size, section) = (bytes.len() as u64, SymbolSection::Section(id));
                let (scope, flags) = (SymbolScope::Compilation, SymbolFlags::None);
                file.add_symbol(Symbol {
                    name,
                    value,
                    size,
                    kind,
                    scope,
                    weak: false,
                    section,
                    flags,
                });
            }
        }
        for (_, name, _, links) in parts {
            let (id, begin) = places[name];
            for (at, r_type, target, addend) in *links {
                let (symbol, addend) = match places.get(target) {
                    Some((id, value)) => (file.section_symbol(*id), addend + *value as i64),
                    None => (undefined(&mut file, target), *addend),
                };
                let flags = RelocationFlags::Elf { r_type: *r_type };
                let link = Relocation { offset: begin + at, symbol, addend, flags };
                file.add_relocation(id, link).unwrap();
            }
        }
        file.write().unwrap()
    }

    fn undefined(file: &mut Object<'_>, name: &str) -> object::write::SymbolId {
        file.add_symbol(Symbol {
            name: name.into(),
            value: 0,
            size: 0,
            kind: SymbolKind::Unknown,
            scope: SymbolScope::Dynamic,
            weak: false,
            section: SymbolSection::Undefined,
            flags: SymbolFlags::None,
        })
    }

    fn changed(base: &[Part], candidate: &[Part]) -> Changed {
        let [base, candidate] = [base, candidate].map(|parts| Build::parse(&file(parts)).unwrap());
        Changed::of(&base, &candidate)
    }

    fn names(changed: &Changed) -> Vec<&str> {
        changed.functions.iter().map(String::as_str).collect()
    }

    const RET: Part = (".text", "leaf", &[0xc3], &[]);
    const OTHER: Part = (".text", "other", &[0x90, 0xc3], &[]);
    const PAD: Part = (".text", "(nops)", &[0x66, 0x90, 0x90], &[]);
    // mov $string, %rdi; call leaf; ret
    const HOOK: Part = (
        ".text",
        "hook",
        &[0x48, 0xc7, 0xc7, 0, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0xc3],
        &[(3, ADDRESS, "(text)", 0), (8, PLT, "leaf", -4)],
    );
    const TEXT: Part = (".rodata.str1.1", "(text)", b"words\0", &[]);
    const INIT: Part =
        (".init.text", "start", &[0x48, 0xc7, 0xc7, 0, 0, 0, 0], &[(3, ADDRESS, "probe", 0)]);
    const PROBE: Part = (".data", "probe", &[0; 8], &[(0, WORD, "hook", 0)]);

    #[test]
    fn what_has_moved_is_equal() {
        let base = [RET, HOOK, OTHER, TEXT, INIT, PROBE];
        let moved = [
            (".modinfo", "(info)", &b"srcversion=1\0"[..], &[][..]),
            (".rodata.str1.1", "(more)", b"other words\0", &[]),
            ("__bug_table", "(line)", &[7; 12], &[(0, PC, "leaf", 0)]),
            OTHER,
            PAD,
            HOOK,
            RET,
            TEXT,
            (".data", "(padding)", &[0; 16], &[]),
            PROBE,
            INIT,
        ];
        let found = changed(&base, &moved);
        assert!(found.is_nothing(), "{found:?}");
        assert_eq!(found.words(), "0 of 3 functions differ");
    }

    #[test]
    fn code_strings_and_data_that_differ_are_found_where_they_are_used() {
        let base = [RET, HOOK, OTHER, TEXT, INIT, PROBE];
        let with = |index: usize, part: Part| {
            let mut parts = base;
            parts[index] = part;
            changed(&base, &parts)
        };
        let nop = with(0, (".text", "leaf", &[0x90, 0xc3], &[]));
        assert_eq!((names(&nop), nop.rest), (vec!["leaf"], false));
        assert_eq!(nop.words(), "1 of 3 functions differs: leaf");
        assert!(nop.reached_from("hook").contains("leaf"));
        assert!(!nop.reached_from("other").contains("leaf"));
        let text = with(3, (".rodata.str1.1", "(text)", b"wordy\0", &[]));
        assert_eq!((names(&text), text.rest), (vec!["hook"], false));
        let probe = with(5, (".data", "probe", &[0; 8], &[(0, WORD, "other", 0)]));
        assert_eq!((names(&probe).len(), probe.rest), (0, true));
        let named = with(2, (".text", "renamed", &[0x90, 0xc3], &[]));
        assert_eq!(names(&named), ["other", "renamed"]);
        let bytes =
            with(5, (".data", "probe", &[0, 0, 0, 0, 0, 0, 0, 0, 1], &[(0, WORD, "hook", 0)]));
        assert!(bytes.rest && bytes.words().contains("no function refers to"));
        let nameless = changed(&base, &[&base[..], &[(".text", "(asm)", &[0xf4], &[])]].concat());
        assert!(nameless.rest, "code without a name");
    }

    #[test]
    fn data_that_functions_use_changes_them() {
        // mov table, %rdi: the table has the address of an object, and that a number.
        let user = (
            ".text",
            "user",
            &[0x48, 0x8b, 0x3c, 0x25, 0, 0, 0, 0][..],
            &[(4, ADDRESS, "table", 0)][..],
        );
        let table = (".data", "table", &[0; 8][..], &[(0, WORD, "number", 0)][..]);
        let base = [user, table, (".data", "number", &[1, 0], &[])];
        let found = changed(&base, &[user, table, (".data", "number", &[2, 0], &[])]);
        assert_eq!((names(&found), found.rest), (vec!["user"], false));
    }

    #[test]
    fn addresses_that_the_assembler_fills_in_are_followed() {
        let call = |name, to: &'static [u8]| (".text", name, to, &[][..]);
        // call +1 and call +3, over what lies between.
        let near = call("caller", &[0xe8, 0, 0, 0, 0]);
        let far = call("caller", &[0xe8, 2, 0, 0, 0]);
        assert!(changed(&[near, RET, OTHER], &[far, OTHER, RET]).is_nothing());
        let other = changed(&[near, RET, OTHER], &[near, OTHER, RET]);
        assert_eq!(names(&other), ["caller"], "the same bytes call another function");
    }

    #[test]
    fn an_address_before_an_immediate_is_told_from_its_neighbours() {
        // cmpl $0, number(%rip): relative to the end of the instruction, a byte behind the address.
        const CODE: &[u8] = &[0x83, 0x3d, 0, 0, 0, 0, 0];
        const fn number(name: &'static str) -> Part {
            (".data", name, &[0; 1], &[])
        }
        let of_b = (".text", "test", CODE, &[(2, PC, "b", -5)][..]);
        let of_c = (".text", "test", CODE, &[(2, PC, "c", -5)][..]);
        let [a, b, c] = [number("a"), number("b"), number("c")];
        assert!(changed(&[of_b, a, b, c], &[of_b, c, b, a]).is_nothing());
        assert_eq!(names(&changed(&[of_b, a, b, c], &[of_c, a, c, b])), ["test"]);
    }

    #[test]
    fn tables_belong_to_their_functions() {
        // jmp *table(,%rax,8), whose table has no name; and an instruction that is replaced on some CPUs.
        let switch = (
            ".text",
            "switch",
            &[0xff, 0x24, 0xc5, 0, 0, 0, 0, 0x90][..],
            &[(3, ADDRESS, "(cases)", 0)][..],
        );
        let cases = |links: &'static [Link]| (".rodata", "(cases)", &[0; 16][..], links);
        let first = cases(&[(0, WORD, "switch", 7), (8, WORD, "switch", 0)]);
        let second = cases(&[(0, WORD, "switch", 0), (8, WORD, "switch", 7)]);
        let base = [RET, switch, first];
        let found = changed(&base, &[switch, RET, (".rodata", "more", &[1], &[]), second]);
        assert_eq!(names(&found), ["switch"]);
        let entry = (
            ".altinstructions",
            "(entry)",
            &[0; 10][..],
            &[(0, PC, "leaf", 0), (4, PC, "(new)", 0)][..],
        );
        let new = |bytes: &'static [u8]| (".altinstr_replacement", "(new)", bytes, &[][..]);
        let build = Build::parse(&file(&base)).unwrap();
        assert_eq!(build.items["switch"].uses.len(), 1, "the table, and not what is in it");
        let alternative =
            |bytes| changed(&[RET, OTHER, entry, new(&[0x90])], &[OTHER, RET, entry, new(bytes)]);
        assert!(alternative(&[0x90]).is_nothing());
        assert_eq!(names(&alternative(&[0xcc])), ["leaf"]);
        let call = (
            ".altinstr_replacement",
            "(new)",
            &[0xe8, 0, 0, 0, 0][..],
            &[(1, PLT, "other", -4)][..],
        );
        let calling = [RET, OTHER, entry, call];
        assert!(changed(&calling, &calling).reached_from("leaf").contains("other"));
        let piece = Vec::from_iter(build.items.keys().filter(|name| name.starts_with('\0')));
        assert_eq!(piece.len(), 1, "{piece:?}");
    }

    #[test]
    fn code_of_arm64_is_compared_by_where_its_addresses_lead() {
        const RET: &[u8] = &0xd65f_03c0_u32.to_le_bytes();
        const NOP_RET: &[u8] = &[0x1f, 0x20, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6];
        // adrp x0, text; add x0, x0, :lo12:text; bl leaf; b over what lies between, which the assembler has filled in
        const CODE: &[u8] = &[0, 0, 0, 0x90, 0, 0, 0, 0x91, 0, 0, 0, 0x94, 1, 0, 0, 0x14];
        const OTHER_REGISTER: &[u8] = &[0, 0, 0, 0x90, 1, 0, 0, 0x91, 0, 0, 0, 0x94, 1, 0, 0, 0x14];
        const FARTHER: &[u8] = &[0, 0, 0, 0x90, 0, 0, 0, 0x91, 0, 0, 0, 0x94, 3, 0, 0, 0x14];
        const LINKS: &[Link] = &[
            (0, elf::R_AARCH64_ADR_PREL_PG_HI21, "(text)", 0),
            (4, elf::R_AARCH64_ADD_ABS_LO12_NC, "(text)", 0),
            (8, elf::R_AARCH64_CALL26, "far", 0),
        ];
        let build = |parts: &[Part]| Build::parse(&file_for(Architecture::Aarch64, parts)).unwrap();
        let differ =
            |base: &[Part], candidate: &[Part]| Changed::of(&build(base), &build(candidate));
        let part = |name, code| (".text", name, code, &[][..]);
        let hook = |code| (".text", "hook", code, LINKS);
        let far = (".text.far", "far", RET, &[][..]);
        let (leaf, other) = (part("leaf", RET), part("other", NOP_RET));
        let mark = (".text", "$x", &[][..], &[][..]);
        let base = [hook(CODE), leaf, other, far, TEXT];
        let more = (".rodata.str1.1", "(more)", &b"other words\0"[..], &[][..]);
        let moved = [mark, hook(FARTHER), other, leaf, part("(pad)", &[0; 4]), far, more, TEXT];
        let found = differ(&base, &moved);
        assert!(found.is_nothing(), "{found:?}");
        assert!(found.reached_from("hook").is_superset(&["leaf", "far"].into()), "{found:?}");
        let to_other = differ(&base, &[hook(CODE), other, leaf, far, TEXT]);
        assert_eq!(names(&to_other), ["hook"], "the same bytes go to another function");
        let register = differ(&base, &[hook(OTHER_REGISTER), leaf, other, far, TEXT]);
        assert_eq!(names(&register), ["hook"]);
        let text = (".rodata.str1.1", "(text)", &b"wordy\0"[..], &[][..]);
        assert_eq!(names(&differ(&base, &[hook(CODE), leaf, other, far, text])), ["hook"]);
    }

    #[test]
    fn what_is_no_driver_is_not_compared() {
        assert!(Build::parse(b"no driver").is_none());
        let whole = file(&[RET, HOOK, OTHER, TEXT, INIT, PROBE]);
        for length in 0..whole.len() {
            let _ = Build::parse(&whole[..length]);
        }
        // A piece of no name that refers to itself, and two that refer to each other.
        let parts: &[Part] = &[
            RET,
            (".rodata", "(a)", &[0; 8], &[(0, WORD, "(a)", 0)]),
            (".rodata", "(b)", &[0; 8], &[(0, WORD, "(c)", 0)]),
            (".rodata", "(c)", &[0; 8], &[(0, WORD, "(b)", 0)]),
        ];
        assert!(changed(parts, parts).is_nothing());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("no.ko");
        std::fs::write(&path, file(&[PROBE])).unwrap();
        assert_eq!(Changed::between([(&*path, &*path)]), None, "no function has a name");
    }
}
