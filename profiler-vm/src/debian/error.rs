//! What can go wrong with packages, and the commands that deal with them.

use std::io;
use std::process::{Command, ExitStatus, Stdio};

/// Why packages cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DebianError {
    /// A program is missing, or cannot be started.
    #[error(
        "cannot run `{0}`: {1}; install apt, dpkg and kmod, or what has bsdtar (libarchive-tools)"
    )]
    NotStarted(String, io::Error),
    /// A program failed: the whole command, its end, and the last lines that it wrote.
    #[error("`{0}` failed: {1}\n{2}")]
    Failed(String, ExitStatus, String),
    /// A file or folder cannot be read, written, made or moved.
    #[error(transparent)]
    File(#[from] io::Error),
    /// Files of the user's are no kernel that boots here.
    #[error("no kernel in {0}")]
    NoKernel(String),
    /// The packages are not what they have to be.
    #[error("{0}")]
    Packages(String),
}

impl DebianError {
    /// Whether the file system has no room left.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::File(error) => error.kind() == io::ErrorKind::StorageFull,
            // libc's text of ENOSPC, and apt's own words before it downloads.
            Self::Failed(_, _, said) => {
                said.contains("No space left on device") || said.contains("enough free space")
            }
            _ => false,
        }
    }
}

/// Runs the command, which has to succeed; what it wrote to standard output and to standard error.
pub(super) fn output(command: &mut Command) -> Result<(String, String), DebianError> {
    const TAIL: usize = 8;
    let text = crate::text(command);
    // What a program says is searched for known words.
    let output = command.env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output = output.map_err(|error| DebianError::NotStarted(text.clone(), error))?;
    let [out, said] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    if output.status.success() {
        return Ok((out.into_owned(), said.into_owned()));
    }
    let lines: Vec<&str> = said.lines().collect();
    let said = lines[lines.len().saturating_sub(TAIL)..].join("\n");
    Err(DebianError::Failed(text, output.status, said))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::files::failed;

    #[test]
    fn a_full_disk_is_known_by_what_programs_say() {
        let program = |said: &str| {
            let script = "echo out; echo \"$1\" >&2; exit 3";
            output(Command::new("sh").args(["-c", script, "sh", said])).unwrap_err()
        };
        let full = "dpkg-deb: error: failed to write (No space left on device)";
        assert!(program(full).is_disk_full(), "{}", program(full));
        assert!(program("E: You don't have enough free space in /cache/.").is_disk_full());
        let other = program("E: Failed to fetch http://x/ Temporary failure resolving");
        assert!(!other.is_disk_full());
        let text = other.to_string();
        assert!(text.contains("exit status: 3") && text.ends_with("resolving"), "{text}");
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let full = failed("write", Path::new("/x"))(full);
        assert!(DebianError::from(full).is_disk_full());
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = output(&mut Command::new("no-such-apt")).unwrap_err().to_string();
        assert!(error.starts_with("cannot run `no-such-apt`"), "{error}");
    }
}
