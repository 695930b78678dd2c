//! Source lines of a module's instructions, from the DWARF in its file.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use gimli::{EndianArcSlice, RunTimeEndian};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SectionKind};

use profiler_recording::call_tree::TreePlace;

type Reader = EndianArcSlice<RunTimeEndian>;

/// A file is relocatable: each of its sections begins at 0. Addresses here have the section's number above this bit.
const SECTION_SHIFT: u32 = 40;

/// The debug information of a module's file.
#[derive(Default)]
pub struct Lines {
    /// Addresses of the functions of each name, ascending.
    functions: HashMap<String, Vec<u64>>,
    /// `None` without debug information.
    dwarf: Option<addr2line::Context<Reader>>,
}

impl Lines {
    /// Reads the file at `path`. One without debug information has addresses alone.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub fn read(path: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
        let file = object::File::parse(&*bytes).map_err(|error| error.to_string())?;
        let mut functions: HashMap<String, Vec<u64>> = HashMap::new();
        for symbol in file.symbols() {
            if let (Ok(name), Some(section)) = (symbol.name(), symbol.section_index()) {
                let address = base(section.0).wrapping_add(symbol.address());
                functions.entry(name.to_owned()).or_default().push(address);
            }
        }
        for addresses in functions.values_mut() {
            addresses.sort_unstable();
        }
        if file.section_by_name(".debug_line").is_none() {
            return Ok(Self { functions, dwarf: None });
        }
        let dwarf = gimli::Dwarf::load(|id| -> Result<Reader, gimli::Error> {
            let data = relocated(&file, id.name()).unwrap_or_default();
            Ok(EndianArcSlice::new(Arc::from(data), RunTimeEndian::Little))
        });
        let context = dwarf.and_then(addr2line::Context::from_dwarf);
        let dwarf = context.map_err(|error| error.to_string())?;
        Ok(Self { functions, dwarf: Some(dwarf) })
    }

    /// Where the instruction lies that is `offset` bytes into the `index`-th function called `name`.
    pub(super) fn place(&self, name: &str, index: usize, offset: u64) -> TreePlace {
        let unknown = TreePlace { offset: Some(offset), ..TreePlace::default() };
        let address = self.functions.get(name).and_then(|addresses| addresses.get(index));
        let (Some(address), Some(dwarf)) = (address, &self.dwarf) else { return unknown };
        let frame = dwarf
            .find_frames(address.wrapping_add(offset))
            .skip_all_loads()
            .and_then(|mut frames| frames.next());
        let Ok(Some(frame)) = frame else { return unknown };
        let function = frame
            .function
            .and_then(|function| function.raw_name().ok().map(|name| name.into_owned()));
        match frame.location {
            Some(addr2line::Location { file: Some(file), line: Some(line), .. }) => TreePlace {
                function,
                file: Some(file.to_owned()),
                line: Some(line),
                ..TreePlace::default()
            },
            _ => TreePlace { function, ..unknown },
        }
    }
}

fn base(section: usize) -> u64 {
    (section as u64) << SECTION_SHIFT
}

/// A section's bytes with its relocations applied. Addresses of code get their section's number; offsets into other debug sections
/// stay as they are.
fn relocated(file: &object::File<'_>, name: &str) -> Option<Vec<u8>> {
    let section = file.section_by_name(name)?;
    let mut data = section.uncompressed_data().ok()?.into_owned();
    for (at, relocation) in section.relocations() {
        let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
        let Ok(symbol) = file.symbol_by_index(symbol) else { continue };
        let of_code = symbol.section_index().filter(|section| {
            file.section_by_index(*section).is_ok_and(|section| section.kind() == SectionKind::Text)
        });
        let value = of_code
            .map_or(0, |section| base(section.0))
            .wrapping_add(symbol.address())
            .wrapping_add_signed(relocation.addend());
        let bytes = usize::from(relocation.size() / 8);
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(bytes)?;
        if let (1..=8, Some(target)) = (bytes, data.get_mut(at..end)) {
            target.copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
    }
    Some(data)
}
