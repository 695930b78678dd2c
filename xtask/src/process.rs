//! Running other programs. An error always carries the text of the command.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use anyhow::{Context as _, Result, bail};

pub(crate) use profiler_system::files::{copy, create_dir, read, remove_dir, rename, write};
pub(crate) use profiler_system::text;

use crate::stop;

/// Runs the command without input; it inherits our output.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let text = text(command);
    let status = stop::run(command.stdin(Stdio::null()), |mut child| child.wait())?;
    if !status.success() {
        bail!("`{text}` failed: {status}");
    }
    Ok(())
}

/// Runs the command and returns its standard output; the end of what it wrote is part of an error.
pub(crate) fn stdout(command: &mut Command) -> Result<String> {
    Ok(output_if(command, &[0])?.0)
}

/// The first line of what a program says of its version.
pub(crate) fn version(program: impl AsRef<OsStr>) -> Result<String> {
    let text = stdout(Command::new(program).arg("--version"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// The standard output and the error output of a command that ends with one of these exit codes.
pub(crate) fn output_if(command: &mut Command, codes: &[i32]) -> Result<(String, String)> {
    let output = capture(command)?;
    let [out, said] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    if !output.status.code().is_some_and(|code| codes.contains(&code)) {
        bail!("`{}` failed: {}{}{}", text(command), output.status, tail(&out), tail(&said));
    }
    Ok((out.into_owned(), said.into_owned()))
}

/// The last lines of what a command wrote, each on a new line.
pub(crate) fn tail(text: &str) -> String {
    const LINES: usize = 30;
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    last.iter().map(|line| format!("\n{line}")).collect()
}

/// Runs the command, prints its standard output as it comes, and returns its lines, whatever the exit status.
pub(crate) fn printed(command: &mut Command) -> Result<(ExitStatus, Vec<String>)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    stop::run(command, |mut child| {
        let mut lines = Vec::new();
        for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
            let line = line?;
            println!("{line}");
            lines.push(line);
        }
        Ok((child.wait()?, lines))
    })
}

/// Runs the command and returns its output, whatever its exit status.
pub(crate) fn capture(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    stop::run(command, Child::wait_with_output)
}

/// All files below a folder, in a fixed order.
pub(crate) fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let found = stdout(Command::new("find").arg(folder).args(["-type", "f"]))?;
    let mut files: Vec<PathBuf> = found.lines().map(PathBuf::from).collect();
    files.sort();
    Ok(files)
}

/// The SHA-256 of each file below `root`, as `sha256sum -c` reads them there.
pub(crate) fn sha256sums(root: &Path, files: &[PathBuf]) -> Result<String> {
    let names = files.iter().map(|file| file.strip_prefix(root).unwrap_or(file));
    stdout(Command::new("sha256sum").arg("--").args(names).current_dir(root))
}

/// Reads a file of JSON.
pub(crate) fn read_json(path: &Path) -> Result<serde_json::Value> {
    serde_json::from_str(&read(path)?).with_context(|| format!("{} is no JSON", path.display()))
}

/// An empty folder: an older one of that path goes with its content.
pub(crate) fn empty_dir(folder: &Path) -> Result<()> {
    remove_dir(folder)?;
    Ok(create_dir(folder)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_what_it_said() {
        let error = stdout(Command::new("sh").args(["-c", "echo it is broken >&2; exit 3"]));
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("sh -c 'echo it is broken >&2; exit 3'"), "{error}");
        assert!(error.contains("exit status: 3") && error.ends_with("it is broken"), "{error}");
    }

    #[test]
    fn a_failure_has_the_last_lines_of_both_streams() {
        let error = stdout(Command::new("sh").args(["-c", "seq 100; seq 200 300 >&2; false"]));
        let error = format!("{:#}", error.unwrap_err());
        let lines: Vec<&str> = error.lines().skip(1).collect();
        let expected: Vec<String> = (71..=100).chain(271..=300).map(|n| n.to_string()).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = format!("{:#}", run(&mut Command::new("no-such-program-here")).unwrap_err());
        assert!(error.contains("`no-such-program-here`"), "{error}");
    }
}
