//! The commands that deal with packages.

use std::io::{self, ErrorKind};
use std::process::{Command, Stdio};

/// Runs the command, which has to succeed; what it wrote to standard output and to standard error.
///
/// # Errors
/// Of these kinds, by what is at fault: `Unsupported`, the program is missing; `StorageFull`; `InvalidData`, bsdtar's archive;
/// `NetworkDown`, perhaps, what else failed.
pub(super) fn output(command: &mut Command) -> io::Result<(String, String)> {
    const TAIL: usize = 8;
    let text = profiler_system::text(command);
    // What a program says is searched for known words.
    let output = command.env("LC_ALL", "C").stdin(Stdio::null()).output().map_err(|error| {
        let needed = "install apt, dpkg and kmod, or what has bsdtar (libarchive-tools)";
        let text = format!("cannot run `{text}`: {error}; {needed}");
        io::Error::new(ErrorKind::Unsupported, text)
    })?;
    let [out, said] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    if output.status.success() {
        return Ok((out.into_owned(), said.into_owned()));
    }
    let lines: Vec<&str> = said.lines().collect();
    let said = lines[lines.len().saturating_sub(TAIL)..].join("\n");
    // libc's text of ENOSPC, and apt's own words before it downloads.
    let is_full =
        ["No space left on device", "enough free space"].iter().any(|it| said.contains(it));
    let kind = match command.get_program().to_str() {
        _ if is_full => ErrorKind::StorageFull,
        Some("bsdtar") => ErrorKind::InvalidData,
        _ => ErrorKind::NetworkDown,
    };
    Err(io::Error::new(kind, format!("`{text}` failed: {}\n{said}", output.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_known_by_what_programs_say() {
        let program = |said: &str| {
            let script = "echo out; echo \"$1\" >&2; exit 3";
            output(Command::new("sh").args(["-c", script, "sh", said])).unwrap_err()
        };
        let full = "dpkg-deb: error: failed to write (No space left on device)";
        assert_eq!(program(full).kind(), ErrorKind::StorageFull, "{}", program(full));
        let full = "E: You don't have enough free space in /cache/.";
        assert_eq!(program(full).kind(), ErrorKind::StorageFull);
        let other = program("E: Failed to fetch http://x/ Temporary failure resolving");
        assert_eq!(other.kind(), ErrorKind::NetworkDown);
        let text = other.to_string();
        assert!(text.contains("exit status: 3") && text.ends_with("resolving"), "{text}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = output(&mut Command::new("no-such-apt")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().starts_with("cannot run `no-such-apt`"), "{error}");
    }
}
