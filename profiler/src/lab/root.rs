//! A root folder in the guest's memory, in which loads are timed.
//!
//! The guest's root is the host's, over 9p: a program that starts from it waits for the host, under virtual time
//! until the next timer. This root has the program and its libraries, so that an `execve` reads nothing from the host, and
//! an empty folder for files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};

/// The program within the root.
pub(super) const PROGRAM: &str = "/profiler";

/// Its path in the guest.
pub(super) const FOLDER: &str = "/run/profiler-lab/root";

/// Where [`keep_libraries`] keeps them.
const LIBRARIES: &str = "/run/profiler-lab/lib";

/// Makes the root with the program in the file `program`.
///
/// # Errors
/// Names the file or mount that could not be made.
pub(super) fn make(program: &Path) -> io::Result<()> {
    let root = Path::new(FOLDER);
    let mut files = vec![(program.to_owned(), PathBuf::from(PROGRAM))];
    files.extend(libraries(program)?.into_iter().map(|path| (path.clone(), path)));
    for (from, path) in files {
        let to = below(root, &path);
        let copied =
            to.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::copy(&from, &to));
        copied.map_err(|error| {
            with(&error, &format!("copy {} to {}", from.display(), to.display()))
        })?;
    }
    for folder in ["tmp", "proc", "dev"] {
        let folder = root.join(folder);
        fs::create_dir_all(&folder)
            .map_err(|error| with(&error, &format!("create {}", folder.display())))?;
    }
    for folder in ["proc", "dev"] {
        let (from, to) = (Path::new("/").join(folder), root.join(folder));
        mount(Some(&from), &to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
            .map_err(|errno| with(&errno.into(), &format!("mount {}", to.display())))?;
    }
    Ok(())
}

/// Puts copies in memory in the place of the libraries of `program` and of the loader's cache, so that each further
/// process starts without waiting for the host: that was a second of the two that a run of 1,000 calls took.
///
/// # Errors
/// Names the file that could not be copied or mounted.
pub(super) fn keep_libraries(program: &Path) -> io::Result<()> {
    let folder = Path::new(LIBRARIES);
    fs::create_dir_all(folder)
        .map_err(|error| with(&error, &format!("create {}", folder.display())))?;
    let cache = PathBuf::from("/etc/ld.so.cache");
    let files = libraries(program)?.into_iter().chain(cache.exists().then_some(cache));
    for (number, path) in files.enumerate() {
        let copy = folder.join(number.to_string());
        fs::copy(&path, &copy)
            .map_err(|error| with(&error, &format!("copy {}", path.display())))?;
        mount(Some(&copy), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|errno| with(&errno.into(), &format!("mount {}", path.display())))?;
    }
    Ok(())
}

/// Enters the root, for good.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn enter() -> io::Result<()> {
    std::os::unix::fs::chroot(FOLDER)?;
    std::env::set_current_dir("/")
}

/// The program's shared libraries and their loader, by the paths that it uses; empty for a static program.
fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    // As ldd does: ld.so(8).
    let output =
        Command::new(program).arg("--version").env("LD_TRACE_LOADED_OBJECTS", "1").output();
    let output = output.map_err(|error| with(&error, &format!("run {}", program.display())))?;
    Ok(paths(&String::from_utf8_lossy(&output.stdout)))
}

/// The paths in `NAME => PATH (ADDRESS)` and `PATH (ADDRESS)`.
fn paths(listed: &str) -> Vec<PathBuf> {
    listed
        .lines()
        .filter_map(|line| {
            let (before, address) = line.rsplit_once(" (0x")?;
            address.ends_with(')').then_some(())?;
            let path = before.rsplit_once("=> ").map_or(before, |(_, path)| path).trim();
            path.starts_with('/').then(|| PathBuf::from(path))
        })
        .collect()
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn with(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what}: {error}"))
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
        let found = paths(listed);
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(found, expected.map(PathBuf::from));
        assert!(paths("profiler 0.1.0\n").is_empty(), "a static program");
        assert_eq!(
            below(Path::new("/root"), &found[1]),
            Path::new("/root/lib64/ld-linux-x86-64.so.2")
        );
    }
}
