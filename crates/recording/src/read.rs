//! Reads recordings from untrusted files.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use profiler_base::error::{Failure, exit};
use profiler_base::terminal::clean;

use super::{Recording, SCHEMA, SERIES_SCHEMA, Series, VERSION};

/// Largest file that is read. A recording of sixty handlers takes about 3 MiB.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// The remedy for a file of another program.
const NAME_ONE: &str = "name a file that `profiler run --json` wrote";

/// The two fields that every version has.
#[derive(Deserialize)]
#[serde(expecting = "a recording")]
struct Head {
    schema: String,
    version: u64,
}

impl Recording {
    /// Reads the file `path` and checks that it agrees with itself.
    ///
    /// # Errors
    /// A sentence that says what the file is instead and what to do; never a panic, and never
    /// more memory than the file's size explains.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Self::parse(&read_bounded(path)?, path)
    }

    /// Reads the text of a recording; `path` is for messages.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, Failure> {
        let mut runs = Series::parse(bytes, path)?.runs;
        let last = runs.pop().filter(|_| runs.is_empty());
        last.ok_or_else(|| {
            let what = "holds several runs, and one is wanted: name the file of a single run";
            refused(path, what.to_owned())
        })
    }
}

impl Series {
    /// Reads the file `path` (`-` is standard input), which holds a series or a single recording; the
    /// latter is a series of one run.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Self::parse(&read_bounded(path)?, path)
    }

    /// Reads the text of a series or of a single recording; `path` is for messages.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, Failure> {
        document(bytes).map_err(|what| refused(path, what))
    }
}

fn refused(path: &Path, what: String) -> Failure {
    Failure::new(exit::BAD_INPUT, format!("{} {what}", path.display()))
}

/// What a file holds, checked; or what it is instead, and what to do.
fn document(bytes: &[u8]) -> Result<Series, String> {
    let Head { schema, version } = serde_json::from_slice(bytes)
        .map_err(|error| format!("is not a recording: {}: {NAME_ONE}", short(&error)))?;
    if schema != SCHEMA && schema != SERIES_SCHEMA {
        let shown: String = schema.chars().take(60).flat_map(char::escape_debug).collect();
        return Err(format!(
            "is not a recording: its `schema` is `{shown}`, not `{SCHEMA}`: {NAME_ONE}"
        ));
    }
    if version > u64::from(VERSION) {
        return Err(format!(
            "is a recording of version {version}, and this program reads up to version {VERSION}: update profiler"
        ));
    }
    match schema == SCHEMA {
        true => Ok(Series::new("", vec![checked(bytes, Recording::check)?])),
        false => checked(bytes, Series::check),
    }
}

/// What is wrong, which may quote the file.
fn short(error: &serde_json::Error) -> String {
    clean(&error.to_string()).chars().take(200).collect()
}

fn checked<T: DeserializeOwned>(
    bytes: &[u8],
    check: impl Fn(&T) -> Result<(), String>,
) -> Result<T, String> {
    let read: T = serde_json::from_slice(bytes).map_err(|error| {
        let error = short(&error);
        format!("is a damaged recording: {error}: restore it from its source, or measure again")
    })?;
    check(&read).map_err(|error| {
        format!(
            "contradicts itself: {}: it was edited or damaged; restore it, or measure again",
            clean(&error)
        )
    })?;
    Ok(read)
}

/// The whole file or pipe, if it is of a sensible size. Standard input is `-`.
fn read_bounded(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)
    } else {
        // A FIFO is fine: a shell's `<(command)` is one. It is waited for until somebody writes.
        let kind = std::fs::metadata(path).map_err(Failure::cannot_read(path))?.file_type();
        if !kind.is_file() && !kind.is_fifo() {
            let kind = if kind.is_dir() { "a folder" } else { "a device or socket" };
            return Err(refused(path, format!("is {kind}, not a file: {NAME_ONE}")));
        }
        File::open(path).and_then(|it| it.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
    };
    read.map_err(Failure::cannot_read(path))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let limit = MAX_FILE_BYTES >> 20;
        let what = format!("exceeds {limit} MiB and is larger than any recording: {NAME_ONE}");
        return Err(refused(path, what));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_short() {
        let head = format!("{{\"schema\":\"{SCHEMA}\",\"version\":\"{}\"}}", "a".repeat(5000));
        let error = Recording::parse(head.as_bytes(), Path::new("a.json")).unwrap_err();
        assert!(error.to_string().len() < 400, "{error}");
    }
}
