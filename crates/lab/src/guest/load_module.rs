//! A module of no code, which the load `module` loads.

use std::fs;
use std::path::{Path, PathBuf};

use object::write::{Object, StandardSegment, Symbol, SymbolSection};
use object::{BinaryFormat, Object as _, ObjectSection as _, SectionFlags, elf};

use profiler_load::builtin::MODULE;

/// Where it is in the guest.
const FILE: &str = "/run/profiler-load.ko";

/// Bytes of a module's name with its NUL, `MODULE_NAME_LEN` of linux/moduleparam.h.
const NAME_BYTES: usize = 64 - size_of::<u64>();

/// The section with `struct module`, whose size has to be the kernel's.
const THIS_MODULE: &str = ".gnu.linkonce.this_module";

/// Writes it, made from the file of the `driver` of that name: what a kernel checks of a module is the same in all that were built
/// for it. A driver that no module can be made from leaves none.
pub(super) fn write(driver: &[u8], name: &str) {
    let written = make(driver, name).and_then(|module| fs::write(FILE, module).ok());
    if written.is_none() {
        let _ = fs::remove_file(FILE);
    }
}

/// The file, if there is one.
pub(super) fn file() -> Option<PathBuf> {
    Path::new(FILE).is_file().then(|| FILE.into())
}

fn make(driver: &[u8], name: &str) -> Option<Vec<u8>> {
    let driver = object::File::parse(driver).ok()?;
    let data = |name: &str| driver.section_by_name(name)?.data().ok();
    let ours = MODULE.to_bytes_with_nul();
    // All zero but the name: neither parameters nor functions.
    let theirs = data(THIS_MODULE)?;
    let named = [name.as_bytes(), b"\0"].concat();
    let at = theirs.windows(named.len()).position(|bytes| bytes == named)?;
    let mut this_module = vec![0; theirs.len()];
    this_module.get_mut(at..at.checked_add(NAME_BYTES)?)?[..ours.len()].copy_from_slice(ours);

    let mut info = [b"license=GPL\0name=", ours].concat();
    let mut entries = data(".modinfo")?.split(|byte| *byte == 0);
    info.extend(entries.find(|entry| entry.starts_with(b"vermagic="))?);
    info.push(0);

    let mut module = Object::new(BinaryFormat::Elf, driver.architecture(), driver.endianness());
    let (only_read, writable) = (elf::SHF_ALLOC, elf::SHF_ALLOC | elf::SHF_WRITE);
    // CRCs of what it uses; `module_layout` is among them. Older compilers leave out the section's end.
    let versions = data("__versions").unwrap_or_default();
    let sections = [
        (".modinfo", info.as_slice(), only_read),
        ("__versions", versions, only_read),
        (THIS_MODULE, this_module.as_slice(), writable),
    ];
    for (name, bytes, flags) in sections.into_iter().filter(|(_, bytes, _)| !bytes.is_empty()) {
        let segment = module.segment_name(StandardSegment::Data).to_vec();
        let section = module.add_section(segment, name.into(), object::SectionKind::Data);
        module.section_mut(section).flags = SectionFlags::Elf { sh_flags: flags.into() };
        module.append_section_data(section, bytes, 64);
    }
    // The kernel loads nothing without symbols.
    module.add_symbol(Symbol {
        name: ours[..ours.len() - 1].into(),
        value: 0,
        size: 0,
        kind: object::SymbolKind::Label,
        scope: object::SymbolScope::Compilation,
        weak: false,
        section: SymbolSection::Absolute,
        flags: object::SymbolFlags::None,
    });
    module.write().ok()
}
