//! The programs that a lab is made of.

use std::path::{Path, PathBuf};

/// A program that is missing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is missing ({program}): {remedy}")]
pub struct Missing {
    what: &'static str,
    program: String,
    remedy: &'static str,
}

/// Where system programs lie that an ordinary user's PATH may lack.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

const NEEDED: [(&str, &str, &str); 4] = [
    (
        "QEMU",
        "qemu-system-x86_64",
        "install package qemu-system-x86 (Debian, Ubuntu) or qemu-kvm-core",
    ),
    ("depmod", "depmod", "install package kmod"),
    ("ip", "ip", "install package iproute2"),
    ("timeout", "timeout", "install package coreutils"),
];

/// Finds virtme-ng's program, and checks that what it needs is there.
///
/// # Errors
/// Names the first program that is missing, and how to get it.
pub fn find(vng: &Path) -> Result<PathBuf, Missing> {
    find_in(vng, &of_path())
}

/// The same path for a process with another working directory, as the guest has one.
#[must_use]
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn of_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).collect()
}

/// QEMU's program.
#[must_use]
pub fn qemu() -> Option<PathBuf> {
    of_system(NEEDED[0].1, &of_path())
}

fn of_system(program: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let system = SYSTEM_FOLDERS.map(PathBuf::from);
    search(Path::new(program), folders.iter().chain(&system))
}

fn find_in(vng: &Path, folders: &[PathBuf]) -> Result<PathBuf, Missing> {
    for (what, program, remedy) in NEEDED {
        if of_system(program, folders).is_none() {
            return Err(Missing { what, program: program.to_owned(), remedy });
        }
    }
    search(vng, folders.iter()).ok_or_else(|| Missing {
        what: "virtme-ng",
        program: vng.display().to_string(),
        remedy: "install it with `pipx install virtme-ng` (or package virtme-ng of Debian 13), or \
                 name its program with --vng or PROFILER_VNG",
    })
}

fn search<'a>(program: &Path, folders: impl Iterator<Item = &'a PathBuf>) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| std::path::absolute(program).ok()).flatten();
    }
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_has_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().to_owned()];
        let touch = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
        let missing = find_in(Path::new("vng"), &folders).unwrap_err().to_string();
        assert!(missing.contains("qemu-system-x86"), "{missing}");
        for (_, program, _) in NEEDED {
            touch(program);
        }
        let missing = find_in(Path::new("vng"), &folders).unwrap_err().to_string();
        assert!(missing.contains("virtme-ng is missing (vng)"), "{missing}");
        assert!(missing.contains("pipx install virtme-ng"), "{missing}");
        touch("vng");
        assert_eq!(find_in(Path::new("vng"), &folders).unwrap(), folder.path().join("vng"));
        assert!(find_in(Path::new("/no/such/vng"), &folders).is_err());
    }
}
