//! Default values of a module's parameters: its file holds an array of `struct kernel_param`
//! (include/linux/moduleparam.h), with relocations to names, kinds and variables.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SectionIndex};

use super::KERNEL_PARAM;

/// Offsets in `struct kernel_param`.
const NAME: u64 = 0;
const OPS: u64 = 16;
const ARG: u64 = 32;

/// Longest name or value that is read.
const MOST_BYTES: usize = 256;

/// What a relocation points at.
struct Pointee<'a> {
    symbol: &'a str,
    section: Option<SectionIndex>,
    offset: u64,
}

/// The parameters of the module in `file`, with the default of those that are a number, a truth value or a string, as sysfs has it.
/// Empty for a file that is damaged.
pub fn defaults(file: &[u8]) -> BTreeMap<String, Option<String>> {
    let mut found = BTreeMap::new();
    let Ok(file) = ElfFile64::<object::Endianness>::parse(file) else { return found };
    let Some(table) = file.section_by_name("__param") else { return found };
    let pointees = pointees(&file, table.index());
    for entry in (0..table.size()).step_by(KERNEL_PARAM).take(pointees.len()) {
        let [name, ops, arg] = [NAME, OPS, ARG].map(|field| pointees.get(&(entry + field)));
        let Some(name) = name.and_then(|name| string(&file, name)) else { continue };
        let value = ops.zip(arg).and_then(|(ops, arg)| value(&file, ops.symbol, arg));
        found.insert(name, value);
    }
    found
}

/// The parameters of a build whose defaults differ from those of the other build, in words, by name.
pub fn changed_defaults(base: &Path, candidate: &Path) -> BTreeMap<String, String> {
    let [base, candidate] =
        [base, candidate].map(|path| defaults(&std::fs::read(path).unwrap_or_default()));
    let names: BTreeSet<&String> = base.keys().chain(candidate.keys()).collect();
    let changes = names.into_iter().filter_map(|name| {
        let [before, after] = [&base, &candidate]
            .map(|values| values.get(name).map(|value| value.as_deref().unwrap_or_default()));
        let words = profiler_kernel::module::changed_default(name, before, after)?;
        Some((name.clone(), words))
    });
    changes.collect()
}

fn pointees<'a>(
    file: &ElfFile64<'a, object::Endianness>,
    section: SectionIndex,
) -> BTreeMap<u64, Pointee<'a>> {
    let Ok(section) = file.section_by_index(section) else { return BTreeMap::new() };
    let pointees = section.relocations().filter_map(|(at, relocation)| {
        let RelocationTarget::Symbol(symbol) = relocation.target() else { return None };
        let symbol = file.symbol_by_index(symbol).ok()?;
        let offset = symbol.address().wrapping_add_signed(relocation.addend());
        Some((at, Pointee { symbol: symbol.name().ok()?, section: symbol.section_index(), offset }))
    });
    pointees.collect()
}

/// The value of a variable of a kind that kernel/params.c has.
fn value(file: &ElfFile64<'_, object::Endianness>, ops: &str, arg: &Pointee<'_>) -> Option<String> {
    let kind = ops.strip_prefix("param_ops_")?;
    let (size, is_signed) = match kind {
        "bool" | "bool_enable_only" | "invbool" | "byte" => (1, false),
        "short" => (2, true),
        "ushort" => (2, false),
        "int" | "bint" => (4, true),
        "uint" => (4, false),
        "long" => (8, true),
        "ulong" | "ullong" => (8, false),
        "charp" => {
            return match pointees(file, arg.section?).get(&arg.offset) {
                Some(text) => string(file, text),
                None => Some("(null)".to_owned()),
            };
        }
        _ => return None,
    };
    let data = file.section_by_index(arg.section?).ok()?.data().ok()?;
    let mut bytes = [0; 8];
    // A section without bytes in the file, such as .bss, is zeros.
    if !data.is_empty() {
        let from = usize::try_from(arg.offset).ok()?;
        bytes[..size].copy_from_slice(data.get(from..from.checked_add(size)?)?);
    }
    let number = u64::from_le_bytes(bytes);
    let unused = 64 - 8 * size as u32;
    Some(match (kind, number) {
        ("bool" | "bool_enable_only", 0) => "N".to_owned(),
        ("bool" | "bool_enable_only", _) => "Y".to_owned(),
        ("invbool", 0) => "Y".to_owned(),
        ("invbool", _) => "N".to_owned(),
        _ if is_signed => ((number.cast_signed() << unused) >> unused).to_string(),
        _ => number.to_string(),
    })
}

/// The text up to its zero byte.
fn string(file: &ElfFile64<'_, object::Endianness>, at: &Pointee<'_>) -> Option<String> {
    let data = file.section_by_index(at.section?).ok()?.data().ok()?;
    let text = data.get(usize::try_from(at.offset).ok()?..)?;
    let end = text.iter().take(MOST_BYTES).position(|&byte| byte == 0)?;
    Some(String::from_utf8_lossy(&text[..end]).into_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use object::write::{Object, Relocation, StandardSection, Symbol, SymbolSection};
    use object::{
        Architecture, BinaryFormat, Endianness, RelocationEncoding, RelocationFlags,
        RelocationKind, SectionKind, SymbolFlags, SymbolKind, SymbolScope,
    };

    use super::*;

    /// A module with these parameters: name, kind, bytes of the variable. A variable of `charp` points at the names.
    pub(in super::super) fn module(parameters: &[(&str, &str, &[u8])]) -> Vec<u8> {
        let mut file = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let info = file.add_section(Vec::new(), b".modinfo".to_vec(), SectionKind::ReadOnlyData);
        file.set_section_data(info, b"license=GPL\0", 1);
        let names = file.section_id(StandardSection::ReadOnlyData);
        let data = file.section_id(StandardSection::Data);
        let table = file.add_section(Vec::new(), b"__param".to_vec(), SectionKind::ReadOnlyData);
        let symbol = |file: &mut Object<'_>, name: &str, section, value| {
            file.add_symbol(Symbol {
                name: name.as_bytes().to_vec(),
                value,
                size: 8,
                kind: SymbolKind::Data,
                scope: SymbolScope::Compilation,
                weak: false,
                section,
                flags: SymbolFlags::None,
            })
        };
        let encoding = RelocationEncoding::Generic;
        let flags = RelocationFlags::Generic { kind: RelocationKind::Absolute, encoding, size: 64 };
        for (name, kind, bytes) in parameters {
            let text = file.append_section_data(names, format!("{name}\0").as_bytes(), 1);
            let variable = file.append_section_data(data, bytes, 8);
            let entry = file.append_section_data(table, &[0; KERNEL_PARAM], 8);
            let at_name = symbol(&mut file, "", SymbolSection::Section(names), text);
            let ops = symbol(&mut file, kind, SymbolSection::Undefined, 0);
            let arg = symbol(&mut file, "", SymbolSection::Section(data), variable);
            let mut points = |section, offset, symbol| {
                file.add_relocation(section, Relocation { offset, symbol, addend: 0, flags })
                    .unwrap();
            };
            points(table, entry + NAME, at_name);
            points(table, entry + OPS, ops);
            points(table, entry + ARG, arg);
            if *kind == "param_ops_charp" && bytes[0] == 1 {
                points(data, variable, at_name);
            }
        }
        file.write().unwrap()
    }

    #[test]
    fn defaults_are_as_sysfs_has_them_and_what_cannot_be_read_is_unknown() {
        let file = module(&[
            ("RAWTP_HOOK", "param_ops_int", &(-1_i32).to_le_bytes()),
            ("on", "param_ops_bool", &[1]),
            ("size", "param_ops_ulong", &u64::MAX.to_le_bytes()),
            ("path", "param_ops_charp", &[1; 8]),
            ("none", "param_ops_charp", &[0; 8]),
            ("own", "psad_ops", &[1]),
        ]);
        let known = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        let expected = [
            known("RAWTP_HOOK", "-1"),
            known("on", "Y"),
            known("size", "18446744073709551615"),
            known("path", "path"),
            known("none", "(null)"),
            ("own".to_owned(), None),
        ];
        assert_eq!(defaults(&file), BTreeMap::from(expected));
        for end in 0..file.len() {
            let _ = defaults(&file[..end]);
        }
    }

    #[test]
    fn builds_whose_defaults_differ_say_which() {
        let folder = tempfile::tempdir().unwrap();
        let build = |name: &str, parameters: &[(&str, &str, &[u8])]| {
            let path = folder.path().join(name);
            std::fs::write(&path, module(parameters)).unwrap();
            path
        };
        let int = "param_ops_int";
        let base = build(
            "a.ko",
            &[("HOOK", int, &[0; 4]), ("id_1", int, &[1, 0, 0, 0]), ("k", int, &[7; 4])],
        );
        let candidate = build(
            "b.ko",
            &[("HOOK", int, &[1, 0, 0, 0]), ("id_2", int, &[2, 0, 0, 0]), ("k", int, &[7; 4])],
        );
        let words: Vec<String> = changed_defaults(&base, &candidate).into_values().collect();
        assert_eq!(words, ["HOOK: 0 -> 1 by default", "id_1: gone", "id_2: new, 2 by default"]);
    }
}
