//! A program that the guest runs beside the driver: many drivers hook the kernel only when a program has opened their device.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::initramfs;
use super::wire;
use crate::error::{Failure, exit};

/// Most bytes of its files, which the guest holds in its memory twice while it reads them.
const MOST_BYTES: u64 = 128 << 20;

/// A program with its arguments, and the files that it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// The program's path and its arguments.
    arguments: Vec<String>,
    /// The program, its libraries, and what else was named; the guest has them under the same paths.
    files: Vec<PathBuf>,
}

impl Agent {
    /// The program of `command`, which is split as a shell would, with its libraries and these `further` files.
    ///
    /// # Errors
    /// If there is no such program, or it is not one that this machine's loader starts.
    pub fn new(command: &str, further: &[PathBuf]) -> Result<Self, Failure> {
        let bad = |why: String| {
            let text = format!("--agent '{command}': {why}");
            Failure::new(exit::USAGE, text)
        };
        let mut arguments =
            shlex::split(command).ok_or_else(|| bad("a quote is not closed".to_owned()))?;
        let name = arguments.first().ok_or_else(|| bad("it names no program".to_owned()))?;
        let program = find(name).ok_or_else(|| bad(format!("there is no program {name}")))?;
        let unreadable = |error: io::Error| bad(format!("{}: {error}", program.display()));
        let libraries = initramfs::libraries(&program).map_err(unreadable)?;
        arguments[0] = utf8(&program).map_err(&bad)?;
        let mut files = vec![program];
        for file in further {
            files.push(std::path::absolute(file).map_err(|error| bad(error.to_string()))?);
        }
        files.extend(libraries);
        Ok(Self { arguments, files })
    }

    /// Its program and arguments, for a reader.
    #[must_use]
    pub fn command(&self) -> String {
        let words = self.arguments.iter().map(String::as_str);
        shlex::try_join(words).unwrap_or_else(|_| self.arguments.join(" "))
    }

    /// The files that the guest gets.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Appends its files to `bytes`; gives what the guest is to do with them.
    ///
    /// # Errors
    /// If a file cannot be read, or they are too large.
    pub(super) fn pack(&self, bytes: &mut Vec<u8>) -> Result<wire::Agent, Failure> {
        let mut packed = Vec::new();
        let mut whole = 0;
        for path in &self.files {
            let bad = |why: String| {
                let text = format!("a file of --agent, {}: {why}", path.display());
                Failure::new(exit::BAD_INPUT, text)
            };
            let file = fs::metadata(path).map_err(|error| bad(error.to_string()))?;
            if !file.is_file() {
                return Err(bad("is no file; name each file of a folder".to_owned()));
            }
            whole += file.len();
            if whole > MOST_BYTES {
                return Err(bad(format!("the files have more than {} MiB", MOST_BYTES >> 20)));
            }
            let read = fs::read(path).map_err(|error| bad(error.to_string()))?;
            let place = [bytes.len() as u64, read.len() as u64];
            bytes.extend(read);
            let mode = file.permissions().mode() & 0o777;
            packed.push(wire::AgentFile { path: utf8(path).map_err(bad)?, mode, bytes: place });
        }
        Ok(wire::Agent { arguments: self.arguments.clone(), files: packed })
    }
}

/// The path of a program as a shell would find it.
fn find(name: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        let found = fs::metadata(path);
        found.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return std::path::absolute(name).ok().filter(is_program);
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(is_program)
}

fn utf8(path: &Path) -> Result<String, String> {
    path.to_str().map(str::to_owned).ok_or_else(|| "its path is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_brings_its_libraries_and_is_never_run_here() {
        let agent = Agent::new("sh -c 'exit 3'", &["Cargo.toml".into()]).unwrap();
        assert!(agent.arguments[0].starts_with('/') && agent.arguments[0].ends_with("/sh"));
        assert_eq!(agent.arguments[1..], ["-c", "exit 3"]);
        assert!(agent.command().ends_with("/sh -c 'exit 3'"));
        let has = |end: &str| agent.files().iter().any(|file| file.ends_with(end));
        assert!(has("libc.so.6") && has("profiler/Cargo.toml"), "{agent:?}");
        let mut bytes = vec![7; 10];
        let packed = agent.pack(&mut bytes).unwrap();
        let [at, size] = packed.files[1].bytes.map(|number| number as usize);
        assert_eq!(bytes[at..at + size], *fs::read("Cargo.toml").unwrap());
        assert_eq!(packed.files[0].mode & 0o500, 0o500);
    }

    #[test]
    fn what_cannot_be_started_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path.display().to_string()
        };
        // A loader of its own would run on this machine.
        let mut other = fs::read("/bin/true").unwrap();
        let at = other.windows(7).position(|part| part == b"/lib64/").unwrap();
        other[at + 1..at + 4].copy_from_slice(b"tmp");
        for (command, why) in [
            ("'", "quote"),
            ("", "names no program"),
            ("/no/such", "there is no program /no/such"),
            (&program("script", b"#!/bin/sh\n"), "is a script"),
            (&program("other", &other), "not a loader of this system"),
        ] {
            let failure = Agent::new(command, &[]).unwrap_err();
            assert_eq!(failure.code, exit::USAGE);
            assert!(failure.message.contains(why), "{command}: {failure}");
        }
        let agent = Agent::new("sh", &[folder.path().to_owned()]).unwrap();
        assert!(agent.pack(&mut Vec::new()).unwrap_err().message.contains("is no file"));
    }
}
