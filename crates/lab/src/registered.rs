//! The functions that a driver gives to the kernel: handlers are called through their addresses, which its file has
//! relocations for.

use std::collections::BTreeSet;
use std::path::Path;

use profiler_base::error::Failure;

use super::changed::Build;
use crate::prepare::{self, said_in};

/// What a module's file says of its functions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registered {
    /// Functions whose address is stored in data or taken by code.
    pub handlers: BTreeSet<String>,
    pub functions: BTreeSet<String>,
    /// Names of its parameters.
    pub parameters: BTreeSet<String>,
}

impl Registered {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let damaged = "it is damaged, or neither for x86-64 nor for arm64";
        Self::parse(&prepare::read(path)?).ok_or_else(|| prepare::unreadable(path, &damaged))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let build = Build::parse(bytes)?;
        let functions = build.functions().map(str::to_owned).collect();
        let types = said_in(bytes, "parmtype=");
        let names = types.iter().filter_map(|of| of.split_once(':'));
        let parameters = names.map(|(name, _)| name.to_owned()).collect();
        Some(Self { handlers: build.given_away, functions, parameters })
    }
}

#[cfg(test)]
mod tests {
    use object::write::{Object, Relocation, StandardSection, Symbol, SymbolSection};
    use object::{
        Architecture, BinaryFormat, Endianness, RelocationEncoding, RelocationFlags,
        RelocationKind, SectionKind, SymbolFlags, SymbolKind, SymbolScope, elf,
    };

    use super::*;

    /// A driver with a function a byte, whose addresses are in these sections.
    fn driver(stored: &[(&str, SectionKind, u64)]) -> Vec<u8> {
        let mut file = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let text = file.section_id(StandardSection::Text);
        file.append_section_data(text, &[0xc3; 4], 1);
        let mut ids = Vec::new();
        for (value, name) in (0..).zip([&b"hooked"[..], b"helper", b"timer", b"hooked.cold"]) {
            ids.push(file.add_symbol(Symbol {
                name: name.to_vec(),
                value,
                size: 1,
                kind: SymbolKind::Text,
                scope: SymbolScope::Compilation,
                weak: false,
                section: SymbolSection::Section(text),
                flags: SymbolFlags::None,
            }));
        }
        for (name, kind, function) in stored {
            let section = file.add_section(Vec::new(), name.as_bytes().to_vec(), *kind);
            file.append_section_data(section, &[0; 8], 8);
            let size = if *kind == SectionKind::Text { 32 } else { 64 };
            let encoding = match size {
                32 => RelocationEncoding::X86Signed,
                _ => RelocationEncoding::Generic,
            };
            let flags = RelocationFlags::Generic { kind: RelocationKind::Absolute, encoding, size };
            let symbol = ids[*function as usize];
            file.add_relocation(section, Relocation { offset: 0, symbol, addend: 0, flags })
                .unwrap();
        }
        let info = file.add_section(Vec::new(), b".modinfo".to_vec(), SectionKind::ReadOnlyData);
        file.append_section_data(info, b"name=d\0parmtype=HOOK:int\0parm=HOOK:whether\0", 1);
        file.write().unwrap()
    }

    #[test]
    fn code_of_arm64_takes_an_address_by_two_instructions() {
        let mut file = Object::new(BinaryFormat::Elf, Architecture::Aarch64, Endianness::Little);
        let text = file.section_id(StandardSection::Text);
        file.append_section_data(text, &[0; 16], 4);
        let mut link = |name: &str, value, r_type| {
            let symbol = file.add_symbol(Symbol {
                name: name.into(),
                value,
                size: 4,
                kind: SymbolKind::Text,
                scope: SymbolScope::Compilation,
                weak: false,
                section: SymbolSection::Section(text),
                flags: SymbolFlags::None,
            });
            let flags = RelocationFlags::Elf { r_type };
            let link = Relocation { offset: value, symbol, addend: 0, flags };
            file.add_relocation(text, link).unwrap();
        };
        link("taken", 0, elf::R_AARCH64_ADD_ABS_LO12_NC);
        link("called", 4, elf::R_AARCH64_CALL26);
        let found = Registered::parse(&file.write().unwrap()).unwrap();
        assert_eq!(Vec::from_iter(&found.handlers), ["taken"]);
        assert_eq!(Vec::from_iter(&found.functions), ["called", "taken"]);
    }

    #[test]
    fn functions_whose_address_is_given_away_are_handlers() {
        let found = Registered::parse(&driver(&[
            (".data.probes", SectionKind::Data, 0),
            (".text.setup", SectionKind::Text, 2),
            ("__mcount_loc", SectionKind::Data, 1),
        ]))
        .unwrap();
        assert_eq!(Vec::from_iter(&found.handlers), ["hooked", "timer"]);
        assert_eq!(Vec::from_iter(&found.functions), ["helper", "hooked", "timer"]);
        assert_eq!(Vec::from_iter(&found.parameters), ["HOOK"]);
        assert!(Registered::parse(b"no driver").is_none());
    }
}
