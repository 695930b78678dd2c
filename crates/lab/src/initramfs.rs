//! The files of a lab's guest: this program and its libraries, in a cpio archive that the kernel unpacks.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Cursor, Write as _};
use std::path::{Path, PathBuf};

use cpio::newc::{Builder, ModeFileType};
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use profiler_base::error::{Failure, exit};
use profiler_load::user_cache;
use profiler_vm::Arch;

use super::agent::{AgentFile, with_libraries};

/// Where the program is, which the kernel starts.
const PROGRAM: &str = "/init";

/// A program that only exits with 0: the kernel and drivers start it in place of others.
const TRUE: &str = "bin/true";

/// Folders that file systems are mounted on, among others.
const FOLDERS: [&str; 7] = ["proc", "sys", "dev", "tmp", "run", "bin", "etc"];

/// Users and groups: loads run as nobody.
const USERS: (&str, &[u8]) =
    ("etc/passwd", b"root:x:0:0::/:/bin/true\nnobody:x:65534:65534::/:/bin/true\n");

/// The program that a guest runs: this one, or for another architecture that of its name beside it or in the user's cache.
pub(super) fn guest_program(arch: Arch) -> Result<PathBuf, Failure> {
    if arch == Arch::HERE {
        return Ok(PathBuf::from("/proc/self/exe"));
    }
    let name = format!("profiler-{}", arch.name());
    let this = std::env::current_exe().unwrap_or_default();
    let beside = this
        .parent()
        .map(|folder| [folder.join(&name), folder.join("../lib/profiler").join(&name)]);
    let kept = user_cache().map(|cache| cache.join("guests").join(&name));
    let mut places = beside.into_iter().flatten().chain(kept);
    places.find(|path| path.is_file()).ok_or_else(|| {
        let text = format!(
            "no {name}, the program that runs in a guest of that architecture, beside {} or in the user's cache: \
             `cargo xtask guest` builds it",
            this.display()
        );
        Failure::new(exit::CANNOT_MEASURE, text)
    })
}

/// Writes the archive to the file `to`, with the program in the file `program`, which has to be static if it is not of this machine.
///
/// # Errors
/// If the program or a library cannot be read, or the archive not be written.
pub(super) fn write(program: &Path, arch: Arch, to: &Path) -> io::Result<()> {
    let mut folders: BTreeSet<PathBuf> = FOLDERS.map(PathBuf::from).into();
    let mut files = with_libraries(program).map_err(io::Error::other)?;
    files[0].path = PROGRAM.to_owned();
    for AgentFile { path, .. } in &files {
        let above = Path::new(path).ancestors().skip(1);
        folders.extend(above.filter_map(|above| above.strip_prefix("/").ok()).map(Path::to_owned));
    }
    folders.remove(Path::new(""));
    let folders = folders.iter().map(|path| {
        let made = Builder::new(&path.to_string_lossy()).mode(0o755);
        (made.set_mode_file_type(ModeFileType::Directory), Cursor::new(Vec::new()))
    });
    let mut entries: Vec<(Builder, Cursor<Vec<u8>>)> = folders.collect();
    // The kernel gives it to the first process, to which its messages go: Documentation/admin-guide/devices.txt.
    let console = Builder::new("dev/console").mode(0o600).rdev_major(5).rdev_minor(1);
    entries.push((console.set_mode_file_type(ModeFileType::Char), Cursor::new(Vec::new())));
    entries.push(file(USERS.0, 0o644, USERS.1.to_vec()));
    entries.push(file(TRUE, 0o755, nothing(arch)));
    for AgentFile { path, bytes, .. } in files {
        entries.push(file(path.trim_start_matches('/'), 0o755, loaded_part(bytes)));
    }
    cpio::write_cpio(entries.into_iter(), BufWriter::new(File::create(to)?))?.flush()
}

fn file(name: &str, mode: u32, bytes: Vec<u8>) -> (Builder, Cursor<Vec<u8>>) {
    let made = Builder::new(name).mode(mode).set_mode_file_type(ModeFileType::Regular);
    (made, Cursor::new(bytes))
}

/// The bytes of a program or library that are loaded to run it, without symbols and debug information behind them.
fn loaded_part(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = loaded_end(&bytes) {
        bytes.truncate(end);
        // e_shoff, and e_shnum and e_shstrndx: the sections are cut off.
        bytes[40..48].fill(0);
        bytes[60..64].fill(0);
    }
    bytes
}

fn loaded_end(bytes: &[u8]) -> Option<usize> {
    let header = FileHeader64::<object::LittleEndian>::parse(bytes).ok()?;
    let segments = header.program_headers(object::LittleEndian, bytes).ok()?;
    let loaded = segments.iter().filter(|it| it.p_type(object::LittleEndian) == elf::PT_LOAD);
    let (offset, size) =
        loaded.map(|it| it.file_range(object::LittleEndian)).max_by_key(|(at, _)| *at)?;
    usize::try_from(offset.checked_add(size)?).ok()
}

/// An ELF program of one segment that calls `exit_group`, as the C library ends one.
fn nothing(arch: Arch) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let (machine, code): (u16, &[u8]) = match arch {
        // mov $231, %eax; xor %edi, %edi; syscall
        Arch::X86_64 => (elf::EM_X86_64, &[0xb8, 231, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05]),
        // mov x8, #94; mov x0, #0; svc #0
        Arch::Arm64 => {
            (elf::EM_AARCH64, &[0xc8, 0x0b, 0x80, 0xd2, 0, 0, 0x80, 0xd2, 1, 0, 0, 0xd4])
        }
    };
    let size = HEADERS + code.len() as u64;
    let kind = u64::from(elf::ET_EXEC) | u64::from(machine) << 16 | 1 << 32;
    // Each header has one entry of these sizes, and there are no sections.
    let (at, sizes, entries) = (64, 64 << 32 | 56 << 48, 1);
    let ident = u64::from_le_bytes(*b"\x7fELF\x02\x01\x01\0");
    let header = [ident, 0, kind, BASE + HEADERS, at, 0, sizes, entries];
    let loaded = u64::from(elf::PT_LOAD) | u64::from(elf::PF_R | elf::PF_X) << 32;
    let segment = [loaded, 0, BASE, BASE, size, size, 4096];
    let words = header.iter().chain(&segment);
    let mut bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(code);
    bytes
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_program_has_its_libraries_and_their_folders_with_it() {
        let archive = tempfile::NamedTempFile::new().unwrap();
        write(Path::new("/bin/sh"), Arch::HERE, archive.path()).unwrap();
        let bytes = fs::read(&archive).unwrap();
        let mut reader = bytes.as_slice();
        let mut names = Vec::new();
        loop {
            let entry = cpio::newc::Reader::new(reader).unwrap();
            if entry.entry().is_trailer() {
                break;
            }
            names.push(entry.entry().name().to_owned());
            reader = entry.finish().unwrap();
        }
        let library = names.iter().find(|name| name.ends_with("/libc.so.6")).unwrap();
        let (folder, _) = library.rsplit_once('/').unwrap();
        for name in ["init", "lib", folder, "dev/console", "bin/true"] {
            assert_eq!(names.iter().filter(|it| *it == name).count(), 1, "{name}: {names:?}");
        }
        assert!(!names.iter().any(|name| name.is_empty() || name.starts_with('/')), "{names:?}");
    }

    #[test]
    fn a_program_runs_without_what_is_cut_off() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let whole = fs::read("/bin/true").unwrap();
        let cut = loaded_part(whole.clone());
        assert!(cut.len() < whole.len());
        for (name, bytes) in [("cut", cut), ("nothing", nothing(Arch::HERE))] {
            let file = folder.path().join(name);
            fs::write(&file, bytes).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
            assert!(Command::new(&file).status().unwrap().success(), "{name}");
        }
        assert_eq!(loaded_part(b"no program".to_vec()), b"no program");
    }
}
