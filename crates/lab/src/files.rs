//! The module files that a guest gets: the driver's, and those of the kernel's package that it depends on.

use object::LittleEndian;
use object::elf::{FileHeader64, SHF_ALLOC, SectionHeader64};
use object::read::elf::{FileHeader as _, SectionHeader as _};

use profiler_base::error::{Failure, exit};
use profiler_vm::KernelImage;

use super::subject::Build;
use super::wire::ModuleFile;
use crate::prepare::{self, SIGNATURE_MAGIC, said_in};

/// Appends the files of these builds to `bytes`, each behind those of what it depends on; gives what a guest is to load, in this order.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn pack<'a>(
    builds: impl IntoIterator<Item = &'a Build>,
    kernel: &KernelImage,
    bytes: &mut Vec<u8>,
) -> Result<Vec<ModuleFile>, Failure> {
    let mut packed = Packed { kernel, bytes, modules: Vec::new() };
    for build in builds {
        let Some(file) = build.subject.module() else { continue };
        packed.add(build, &build.name, &build.params, prepare::read(file)?)?;
    }
    Ok(packed.modules)
}

struct Packed<'a> {
    kernel: &'a KernelImage,
    bytes: &'a mut Vec<u8>,
    modules: Vec<ModuleFile>,
}

impl Packed<'_> {
    /// Adds a module for a build, and first those of the kernel's package that it depends on.
    fn add(
        &mut self,
        build: &Build,
        name: &str,
        params: &str,
        module: Vec<u8>,
    ) -> Result<(), Failure> {
        for needed in dependencies(&module) {
            if self.modules.iter().any(|module| module.name == needed) {
                continue;
            }
            let file = self.kernel.module(&needed).map_err(|error| {
                let text = format!(
                    "{} needs the module {needed}, which the package of kernel {} does not give: {error}",
                    build.given, self.kernel.release
                );
                Failure::new(exit::BAD_INPUT, text)
            })?;
            self.add(build, &needed, "", file)?;
        }
        // The kernel refuses what cannot be read here.
        let module = without_debug(&module).unwrap_or(module);
        let bytes = [self.bytes.len() as u64, module.len() as u64];
        self.bytes.extend(module);
        let (name, params) = (name.to_owned(), params.to_owned());
        self.modules.push(ModuleFile { name, params, bytes });
        Ok(())
    }
}

/// A module without its debug information, which the kernel does not read, and which takes a guest long to read. The sections stay, empty,
/// so that all others keep their numbers; `None` if it is no module, if it is signed, or if it would not become shorter.
fn without_debug(bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.ends_with(SIGNATURE_MAGIC) {
        return None;
    }
    let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
    let sections = header.sections(LittleEndian, bytes).ok()?;
    let mut kept = bytes.get(..size_of::<FileHeader64<LittleEndian>>())?.to_vec();
    let mut headers = Vec::new();
    for section in sections.iter() {
        let mut section: SectionHeader64<LittleEndian> = *section;
        let name = sections.section_name(LittleEndian, &section).ok()?;
        let data = section.data(LittleEndian, bytes).ok()?;
        let align = usize::try_from(section.sh_addralign.get(LittleEndian)).ok()?;
        kept.resize(kept.len().next_multiple_of(align.clamp(1, 4096)), 0);
        section.sh_offset.set(LittleEndian, kept.len() as u64);
        let is_loaded = section.sh_flags.get(LittleEndian) & u64::from(SHF_ALLOC) != 0;
        let is_debug = name.starts_with(b".debug_") || name.starts_with(b".rela.debug_");
        if is_debug && !is_loaded {
            section.sh_size.set(LittleEndian, 0);
        } else {
            kept.extend(data);
        }
        // Sections may lie above each other.
        if kept.len() >= bytes.len() {
            return None;
        }
        headers.push(section);
    }
    kept.resize(kept.len().next_multiple_of(8), 0);
    let at = kept.len() as u64;
    headers.iter().for_each(|section| kept.extend(object::bytes_of(section)));
    // e_shoff.
    kept.get_mut(40..48)?.copy_from_slice(&at.to_le_bytes());
    (kept.len() < bytes.len()).then_some(kept)
}

/// The modules that a module says it depends on.
pub(super) fn dependencies(bytes: &[u8]) -> Vec<String> {
    let lists = said_in(bytes, "depends=");
    let names = lists.iter().flat_map(|list| list.split(','));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use object::write::{Object, StandardSegment};
    use object::{
        Architecture, BinaryFormat, Endianness, Object as _, ObjectSection as _, SectionKind,
    };

    use super::*;

    #[test]
    fn a_module_is_loaded_without_its_debug_information() {
        let mut file = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        for (name, kind, bytes) in [
            (".text", SectionKind::Text, vec![0xc3; 40]),
            (".debug_info", SectionKind::Debug, vec![1; 9_000]),
            (".debug_data", SectionKind::Data, vec![2; 30]),
            (".modinfo", SectionKind::ReadOnlyData, b"depends=a,b\0".to_vec()),
        ] {
            let segment = file.segment_name(StandardSegment::Data).to_vec();
            let id = file.add_section(segment, name.into(), kind);
            file.append_section_data(id, &bytes, 16);
        }
        let whole = file.write().unwrap();
        let kept = without_debug(&whole).unwrap();
        assert!(kept.len() < whole.len() - 8_000);
        let [whole_file, kept_file] = [&whole, &kept].map(|it| object::File::parse(&**it).unwrap());
        assert_eq!(whole_file.sections().count(), kept_file.sections().count());
        for section in whole_file.sections() {
            let name = section.name().unwrap();
            let same = kept_file.section_by_name(name).unwrap();
            assert_eq!((same.index(), same.kind()), (section.index(), section.kind()));
            let bytes = if name == ".debug_info" { &[] } else { section.data().unwrap() };
            assert_eq!(same.data().unwrap(), bytes, "{name}");
        }
        assert_eq!(dependencies(&kept), ["a", "b"]);
        assert_eq!(without_debug(&kept), None, "there is nothing to leave out");
        assert_eq!(without_debug(&[&whole, SIGNATURE_MAGIC].concat()), None, "it is signed");
        // Each section lies above all others: `sh_offset` and `sh_size` of 64 bytes at `e_shoff`.
        let mut hostile = whole.clone();
        let at = u64::from_le_bytes(whole[40..48].try_into().unwrap()) as usize;
        for header in hostile[at..].chunks_exact_mut(64).skip(1) {
            header[24..32].fill(0);
            header[32..40].copy_from_slice(&(whole.len() as u64).to_le_bytes());
        }
        assert_eq!(without_debug(&hostile), None);
    }
}
