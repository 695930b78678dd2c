//! Reads recordings from untrusted files.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::series::{SERIES_SCHEMA, SERIES_VERSION};
use super::{Recording, SCHEMA, Series, VERSION};
use profiler_base::error::{Failure, exit};
use profiler_base::terminal::clean;

/// Largest file that is read. A recording of sixty handlers takes about 3 MiB.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// The remedy for a file of another program.
const NAME_ONE: &str = "name a file that `profiler run --json` wrote";

/// The two fields that every version has.
#[derive(Deserialize)]
struct Head {
    schema: Option<String>,
    version: Option<u64>,
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

fn not_a_recording(seems: &str) -> String {
    format!("is JSON, but not a recording: {seems}: {NAME_ONE}")
}

/// What a file holds, checked; or what it is instead, and what to do.
fn document(bytes: &[u8]) -> Result<Series, String> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err("is empty: the run that should have written it may have failed; look there or measure again".to_owned());
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|error| without_head(bytes, &error))?;
    let Some(schema) = head.schema else {
        return Err(not_a_recording("it has no `schema` field"));
    };
    let newest = match schema.as_str() {
        SCHEMA => VERSION,
        SERIES_SCHEMA => SERIES_VERSION,
        _ => {
            let shown: String = schema.chars().take(60).flat_map(char::escape_debug).collect();
            return Err(not_a_recording(&format!("its `schema` is `{shown}`, not `{SCHEMA}`")));
        }
    };
    let Some(version) = head.version else {
        return Err(not_a_recording("it has no `version` field"));
    };
    if version > u64::from(newest) {
        return Err(format!(
            "is a recording of version {version}, and this program reads up to version {newest}: update profiler"
        ));
    }
    match schema == SCHEMA {
        true => Ok(Series::new("", vec![checked(bytes, Recording::check)?])),
        false => checked(bytes, Series::check),
    }
}

fn checked<T: DeserializeOwned>(
    bytes: &[u8],
    check: impl Fn(&T) -> Result<(), String>,
) -> Result<T, String> {
    let read: T = serde_json::from_slice(bytes).map_err(|error| {
        let error = error.to_string();
        format!(
            "is a damaged recording: {}: restore it from its source, or measure again",
            clean(&error)
        )
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
        let file = File::open(path).map_err(Failure::cannot_read(path))?;
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)
    };
    read.map_err(Failure::cannot_read(path))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let limit = MAX_FILE_BYTES >> 20;
        let what = format!("exceeds {limit} MiB and is larger than any recording: {NAME_ONE}");
        return Err(refused(path, what));
    }
    Ok(bytes)
}

/// What a file is that has no head.
fn without_head(bytes: &[u8], error: &serde_json::Error) -> String {
    let is_compressed = [&[0x1f, 0x8b][..], &[0x28, 0xb5, 0x2f, 0xfd]];
    match error.classify() {
        // JSON, and not an object with such fields.
        Category::Data => not_a_recording("it has no `schema` and `version`"),
        Category::Eof => format!(
            "is cut off at line {}, column {}: copy it again, or measure again",
            error.line(),
            error.column()
        ),
        _ if is_compressed.iter().any(|magic| bytes.starts_with(magic)) => {
            "seems to be compressed: decompress it first".to_owned()
        }
        Category::Syntax | Category::Io => format!("is not JSON: {error}: {NAME_ONE}"),
    }
}
