//! The files of a lab's guest: this program and its libraries, in a cpio archive that the kernel unpacks.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Cursor, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use cpio::newc::{Builder, ModeFileType};
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use profiler_vm::Arch;

use profiler_base::error::{Failure, exit};
use profiler_load::user_cache;

/// Where the program is, which the kernel starts.
const PROGRAM: &str = "init";

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
    let libraries = if arch == Arch::HERE { libraries(program)? } else { Vec::new() };
    for library in &libraries {
        let above = library.ancestors().skip(1).filter_map(|path| path.strip_prefix("/").ok());
        folders.extend(above.filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned));
    }
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
    entries.push(file(PROGRAM, 0o755, loaded_part(fs::read(program)?)));
    for library in &libraries {
        let name = library.to_string_lossy();
        let bytes = fs::read(library)
            .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        entries.push(file(name.trim_start_matches('/'), 0o755, loaded_part(bytes)));
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

/// The program's shared libraries and their loader, by the paths that it uses; empty for a static program.
fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    // As ldd does: ld.so(8).
    let output =
        Command::new(program).arg("--version").env("LD_TRACE_LOADED_OBJECTS", "1").output();
    let output = output.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot run {}: {error}", program.display()))
    })?;
    Ok(paths(&String::from_utf8_lossy(&output.stdout)))
}

/// The paths in `NAME => PATH (ADDRESS)` and `PATH (ADDRESS)`.
fn paths(listed: &str) -> Vec<PathBuf> {
    let paths = listed.lines().filter_map(|line| {
        let (before, address) = line.rsplit_once(" (0x")?;
        address.ends_with(')').then_some(())?;
        let path = before.rsplit_once("=> ").map_or(before, |(_, path)| path).trim();
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    paths.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_under_the_names_that_the_loader_uses() {
        let listed = "\tlinux-vdso.so.1 (0x00007fa774268000)\n\
                      \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007fa77251e000)\n\
                      \tlibgone.so => not found\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007fa77426a000)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(paths(listed), expected.map(PathBuf::from));
        assert!(paths("profiler 0.1.0\n").is_empty(), "a static program");
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
