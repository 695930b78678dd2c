//! Facts about a loaded kernel module, read from sysfs.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::DirEntryExt as _;
use std::path::{Path, PathBuf};

use object::NativeEndian;
use object::elf::{ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID};
use object::read::elf::NoteIterator;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::error::{Failure, exit};

use crate::hooks::Hooks;
use crate::host::{read_bytes, read_dir_facts, read_fact};

/// Build and parameters of a measured module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleFacts {
    /// Name, with underscores, as in `/proc/modules`.
    pub name: String,
    /// `MODULE_VERSION` of its source.
    pub version: Option<String>,
    /// Checksum of its sources, computed at build time.
    pub srcversion: Option<String>,
    /// GNU build id in hexadecimal: builds of different code have different ids.
    pub build_id: Option<String>,
    /// Taint letters, such as `OE` (out of tree, unsigned).
    pub taint: Option<String>,
    /// Bytes of its code and data in memory.
    pub size_bytes: Option<u64>,
    /// Parameters that every user may read, with their values when the run started.
    pub parameters: BTreeMap<String, String>,
    /// Parameters that it was loaded with, where that is known: all others have their defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<String>,
    /// The command that has loaded the BPF programs, if they are what was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What it had registered with the kernel when it was loaded; `None` if nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<Hooks>,
}

/// Facts of the loaded module `name`. Parameters that not every user may read are left out.
///
/// # Errors
/// If the module is not loaded, or its folder in sysfs cannot be read.
pub fn collect(name: &str) -> Result<ModuleFacts, Failure> {
    collect_at(Path::new("/"), name)
}

/// As [`collect`], from the file tree under `root`.
///
/// # Errors
/// As [`collect`].
pub fn collect_at(root: &Path, name: &str) -> Result<ModuleFacts, Failure> {
    // modprobe accepts dashes; the kernel uses underscores.
    let name = underscored(name);
    let dir = root.join("sys/module").join(&name);
    fs::read_dir(&dir).map_err(|error| {
        let text = match error.kind() {
            io::ErrorKind::NotFound => {
                format!("module `{name}` is not loaded: load it with insmod or modprobe first")
            }
            _ => format!("cannot read {}: {error}", dir.display()),
        };
        Failure::new(exit::NO_TARGET, text)
    })?;
    Ok(ModuleFacts {
        version: read_fact(&dir.join("version")),
        srcversion: read_fact(&dir.join("srcversion")),
        build_id: build_id(&dir.join("notes")),
        taint: read_fact(&dir.join("taint")),
        size_bytes: read_fact(&dir.join("coresize")).and_then(|text| text.parse().ok()),
        parameters: read_dir_facts(&dir.join("parameters")),
        given: None,
        command: None,
        hooks: None,
        name,
    })
}

/// The kernel takes both for the same (`parameq()` in kernel/params.c).
pub fn underscored(name: &str) -> String {
    name.replace('-', "_")
}

/// Names of parameters before `=`, up to a blank outside of quotes.
pub fn names_given(given: &str) -> Vec<String> {
    let mut is_quoted = false;
    let words = given.split(|c: char| {
        is_quoted ^= c == '"';
        c.is_whitespace() && !is_quoted
    });
    words
        .filter(|word| !word.is_empty())
        .map(|word| underscored(word.trim_start_matches('"').split('=').next().unwrap_or(word)))
        .collect()
}

/// Longest value of a parameter in a message.
const MOST_SHOWN: usize = 60;

fn shown(value: &str) -> String {
    let mut text: String = value.chars().take(MOST_SHOWN).collect();
    if text.len() < value.len() {
        text.push_str("...");
    }
    text
}

/// How a parameter's default changed from one build to the other; `None` is a build without the parameter.
pub fn changed_default(name: &str, before: Option<&str>, after: Option<&str>) -> Option<String> {
    match (before, after) {
        (Some(before), Some(after)) if before != after => {
            Some(format!("{name}: {} -> {} by default", shown(before), shown(after)))
        }
        (None, Some(after)) => Some(format!("{name}: new, {} by default", shown(after))),
        (Some(_), None) => Some(format!("{name}: gone")),
        _ => None,
    }
}

/// References that are held on a loaded module, so that it cannot be unloaded; `None` if it is not loaded.
pub fn references(name: &str) -> Option<u64> {
    let file = Path::new("/sys/module").join(name).join("refcnt");
    read_fact(&file)?.parse().ok()
}

/// All loaded modules, each with a number that another load of it does not have: the inode of its folder
/// in sysfs, which the kernel gives out in turn (`idr_alloc_cyclic()` in fs/kernfs/dir.c).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loads(HashMap<String, u64>);

impl Loads {
    /// The modules that are loaded now.
    pub fn now() -> Self {
        Self::below(Path::new("/"))
    }

    /// The modules by the `/sys` below `root`.
    pub fn below(root: &Path) -> Self {
        let entries = fs::read_dir(root.join("sys/module")).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|it| Some((it.file_name().into_string().ok()?, it.ino())));
        Self(numbers.collect())
    }

    /// The number of this load of a module; `None` if it is not loaded.
    pub fn number(&self, module: &str) -> Option<u64> {
        self.0.get(module).copied()
    }

    /// Whether both have one and the same load of a module.
    pub fn agree(&self, other: &Self, module: &str) -> bool {
        self.number(module) == other.number(module)
    }
}

/// Build id among the module's ELF notes: some kernels have a file for each note section,
/// some linker scripts merge the sections.
fn build_id(notes: &Path) -> Option<String> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(notes).ok()?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.iter().find_map(|file| find_build_id(&read_bytes(file)?))
}

fn find_build_id(notes: &[u8]) -> Option<String> {
    let endian = NativeEndian;
    let notes = NoteIterator::<FileHeader64<NativeEndian>>::new(endian, 4, notes).ok()?;
    let id = notes
        .map_while(Result::ok)
        .find(|note| note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID)?;
    (!id.desc().is_empty()).then(|| id.desc().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn note(name: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() as u32, desc.len() as u32, kind] {
            bytes.extend(word.to_ne_bytes());
        }
        for part in [name, desc] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn reads_a_loaded_module() {
        let root = tempfile::tempdir().expect("temporary directory");
        let dir = root.path().join("sys/module/hids_testbed");
        fs::create_dir_all(dir.join("parameters")).expect("create");
        fs::create_dir_all(dir.join("notes")).expect("create");
        for (file, text) in [
            ("version", "1.7\n"),
            ("srcversion", "A1B2\n"),
            ("taint", "OE\n"),
            ("coresize", "65536\n"),
            ("parameters/extra", "10\n"),
            ("parameters/secret", "hunter2\n"),
            ("parameters/of_a_group", "hunter2\n"),
        ] {
            fs::write(dir.join(file), text).expect("write");
        }
        for (file, mode) in [("extra", 0o444), ("secret", 0o400), ("of_a_group", 0o440)] {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(dir.join("parameters").join(file), mode).expect("chmod");
        }
        fs::write(dir.join("notes/.note.Linux"), note(b"Linux\0", 0x100, &[0, 0])).expect("write");
        fs::write(
            dir.join("notes/.note.gnu.build-id"),
            note(b"GNU\0", 3, &[0xde, 0xad, 0xbe, 0xef, 0x01]),
        )
        .expect("write");

        let facts = collect_at(root.path(), "hids-testbed").expect("module is there");
        assert_eq!(facts.name, "hids_testbed");
        assert_eq!(facts.version.as_deref(), Some("1.7"));
        assert_eq!(facts.srcversion.as_deref(), Some("A1B2"));
        assert_eq!(facts.taint.as_deref(), Some("OE"));
        assert_eq!(facts.size_bytes, Some(65536));
        assert_eq!(facts.build_id.as_deref(), Some("deadbeef01"));
        assert_eq!(facts.parameters, [("extra".to_owned(), "10".to_owned())].into());
    }

    #[test]
    fn a_module_that_was_loaded_anew_is_another_load() {
        let root = tempfile::tempdir().expect("temporary directory");
        let dir = root.path().join("sys/module/driver");
        fs::create_dir_all(&dir).expect("create");
        let before = Loads::below(root.path());
        assert!(before.agree(&Loads::below(root.path()), "driver"));
        // Kept, so that the next folder cannot have its inode.
        fs::rename(&dir, root.path().join("old")).expect("rename");
        let gone = Loads::below(root.path());
        assert!(!before.agree(&gone, "driver"));
        fs::create_dir_all(&dir).expect("create");
        let after = Loads::below(root.path());
        assert!(!before.agree(&after, "driver") && !gone.agree(&after, "driver"));
    }

    #[test]
    fn absent_names() {
        let root = tempfile::tempdir().expect("temporary directory");
        fs::create_dir_all(root.path().join("sys/module")).expect("create");
        let error = |name: &str| collect_at(root.path(), name).unwrap_err().to_string();
        assert!(error("nope").contains("module `nope` is not loaded"));
    }

    #[test]
    fn build_id_behind_other_notes_and_in_broken_ones() {
        let mut bytes = note(b"Linux\0", 0x100, &[1, 2, 3]);
        bytes.extend(note(b"GNU\0", 3, &[0xab; 20]));
        assert_eq!(find_build_id(&bytes), Some("ab".repeat(20)));
        for cut in 0..bytes.len() {
            assert_eq!(find_build_id(&bytes[..cut]), None);
        }
        assert_eq!(find_build_id(&[0xff; 64]), None);
    }
}
