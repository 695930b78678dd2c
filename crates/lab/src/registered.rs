//! The functions that a driver gives to the kernel: handlers are called through their addresses, which its file has
//! relocations for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use object::{
    Architecture, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags,
    RelocationKind, RelocationTarget, SectionKind, SymbolKind, elf,
};

use crate::prepare::said_in;
use profiler_kernel::names;

/// What a module's file says of its functions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registered {
    /// Functions whose address is stored in data or taken by code.
    pub handlers: BTreeSet<String>,
    /// All functions.
    pub functions: BTreeSet<String>,
    /// Names of its parameters.
    pub parameters: BTreeSet<String>,
}

impl Registered {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub fn read(path: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
        Self::parse(&bytes).map_err(|error| error.to_string())
    }

    fn parse(bytes: &[u8]) -> Result<Self, object::Error> {
        let file = object::File::parse(bytes)?;
        let is_arm64 = file.architecture() == Architecture::Aarch64;
        let mut found = Self::default();
        let mut starts = BTreeMap::new();
        for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
            let (Some(section), name) = (symbol.section_index(), symbol.name()?) else { continue };
            // Code that runs once, and parts of functions.
            let of_section = file.section_by_index(section)?;
            let once = of_section.name()?;
            if once.starts_with(".init")
                || once.starts_with(".exit")
                || name.contains(".cold")
                || names::is_padding(name)
            {
                continue;
            }
            starts.insert((section.0, symbol.address()), name);
            found.functions.insert(name.to_owned());
        }
        for section in file.sections() {
            // Tables of addresses for the kernel's own use (`__mcount_loc`, `.orc_unwind_ip`) have other names.
            let name = section.name()?;
            let bits = match section.kind() {
                SectionKind::Text => 32,
                _ if [".data", ".rodata"].iter().any(|of| name.starts_with(of)) => 64,
                _ => continue,
            };
            for (_, relocation) in section.relocations() {
                let is_stored =
                    relocation.kind() == RelocationKind::Absolute && relocation.size() == bits;
                // arm64 takes an address by two instructions.
                let flags = RelocationFlags::Elf { r_type: elf::R_AARCH64_ADD_ABS_LO12_NC };
                let is_taken = is_arm64 && relocation.flags() == flags;
                if !is_stored && !is_taken {
                    continue;
                }
                let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
                let symbol = file.symbol_by_index(symbol)?;
                let Some(section) = symbol.section_index() else { continue };
                let address = symbol.address().wrapping_add_signed(relocation.addend());
                if let Some(name) = starts.get(&(section.0, address)) {
                    found.handlers.insert((*name).to_owned());
                }
            }
        }
        let types = said_in(bytes, "parmtype=");
        let names = types.iter().filter_map(|of| of.split_once(':'));
        found.parameters = names.map(|(name, _)| name.to_owned()).collect();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use object::write::{Object, Relocation, StandardSection, Symbol, SymbolSection};
    use object::{BinaryFormat, Endianness, RelocationEncoding, SymbolFlags, SymbolScope};

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
            file.add_relocation(text, Relocation { offset: 0, symbol, addend: 0, flags }).unwrap();
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
        assert!(Registered::parse(b"no driver").is_err());
    }
}
