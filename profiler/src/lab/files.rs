//! The module files that a guest gets: the driver's, and those of the kernel's package that it depends on.

use std::fs;
use std::io;
use std::path::Path;

use object::LittleEndian;
use object::elf::{FileHeader64, SectionHeader64};
use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::{Object as _, ObjectSection as _};
use profiler_vm::KernelImage;

use super::plan::Build;
use super::wire::ModuleFile;
use crate::error::{Failure, exit};

/// Files one behind the other, in the order in which they are loaded.
#[derive(Default)]
pub(super) struct Files {
    bytes: Vec<u8>,
    modules: Vec<ModuleFile>,
}

impl Files {
    /// The files of these builds, and of what they depend on.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(super) fn of(builds: &[&Build], kernel: &KernelImage) -> Result<Self, Failure> {
        let mut files = Self::default();
        for build in builds {
            let bytes = fs::read(&build.file).map_err(|error| {
                let text = format!("cannot read {}: {error}", build.file.display());
                Failure::new(exit::BAD_INPUT, text)
            })?;
            for name in dependencies(&bytes) {
                files.add_dependency(&name, kernel, build)?;
            }
            files.add(&build.name, &build.params, bytes);
        }
        Ok(files)
    }

    /// A module of the kernel's package, and what it depends on itself.
    fn add_dependency(
        &mut self,
        name: &str,
        kernel: &KernelImage,
        build: &Build,
    ) -> Result<(), Failure> {
        if self.modules.iter().any(|module| module.name == name) {
            return Ok(());
        }
        let bytes = kernel.module(name).map_err(|error| {
            let text = format!(
                "{} needs the module {name}, which the package of kernel {} does not give: {error}",
                build.given.display(),
                kernel.release
            );
            Failure::new(exit::BAD_INPUT, text)
        })?;
        for further in dependencies(&bytes) {
            self.add_dependency(&further, kernel, build)?;
        }
        self.add(name, "", bytes);
        Ok(())
    }

    fn add(&mut self, name: &str, params: &str, bytes: Vec<u8>) {
        // One that cannot be read is for the kernel to refuse.
        let bytes = without_debug(&bytes).unwrap_or(bytes);
        let place = [self.bytes.len() as u64, bytes.len() as u64];
        self.bytes.extend(bytes);
        self.modules.push(ModuleFile {
            name: name.to_owned(),
            params: params.to_owned(),
            bytes: place,
        });
    }

    /// The modules to load for the one called `name`, which comes last; of two builds the one with these parameters.
    pub(super) fn modules_of(&self, name: &str) -> Vec<ModuleFile> {
        self.up_to(|module| module.name == name)
    }

    /// As [`Self::modules_of`], for the `number`-th build of the name.
    pub(super) fn modules_of_build(&self, name: &str, number: usize) -> Vec<ModuleFile> {
        let of_name: Vec<&ModuleFile> =
            self.modules.iter().filter(|module| module.name == name).collect();
        let wanted = of_name.get(number).map_or([0, 0], |module| module.bytes);
        let mut modules = self.up_to(|module| module.bytes == wanted);
        modules.retain(|module| module.name != name || module.bytes == wanted);
        modules
    }

    fn up_to(&self, is_last: impl Fn(&ModuleFile) -> bool) -> Vec<ModuleFile> {
        let end = self.modules.iter().position(is_last).map_or(0, |at| at + 1);
        self.modules[..end].to_vec()
    }

    /// Writes all files.
    ///
    /// # Errors
    /// As the system.
    pub(super) fn write(&self, to: &Path) -> io::Result<()> {
        fs::write(to, &self.bytes)
    }
}

/// A module without its debug information, which the kernel does not read, and which takes a guest long to read. The sections stay, empty,
/// so that all others keep their numbers; `None` if it is no module.
fn without_debug(bytes: &[u8]) -> Option<Vec<u8>> {
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
        if name.starts_with(b".debug_") || name.starts_with(b".rela.debug_") {
            section.sh_size.set(LittleEndian, 0);
        } else {
            kept.extend(data);
        }
        headers.push(section);
    }
    kept.resize(kept.len().next_multiple_of(8), 0);
    let at = kept.len() as u64;
    headers.iter().for_each(|section| kept.extend(object::bytes_of(section)));
    // e_shoff.
    kept.get_mut(40..48)?.copy_from_slice(&at.to_le_bytes());
    Some(kept)
}

/// The modules that a module says it depends on.
pub(super) fn dependencies(bytes: &[u8]) -> Vec<String> {
    let info = || {
        let file = object::File::parse(bytes).ok()?;
        let info = file.section_by_name(".modinfo")?.data().ok()?.to_owned();
        Some(info)
    };
    let info = info().unwrap_or_default();
    let entries = info.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let mut names = Vec::new();
    for entry in entries {
        if let Some(list) = entry.strip_prefix("depends=") {
            names.extend(list.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
        }
    }
    names
}
