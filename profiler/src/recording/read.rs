//! Reads a recording from a file that may be anything.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::error::Category;

use super::{Inconsistent, Recording, SCHEMA, VERSION};
use crate::terminal::clean;

/// What the field `schema` of every series says.
pub const SERIES_SCHEMA: &str = "profiler/series";
/// Newest version of the format that this program reads, and the one that it writes.
pub const SERIES_VERSION: u32 = 1;

/// Largest file that is read. A recording of sixty handlers takes about 3 MiB, and an interval of
/// them 10 KiB more.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// Why a file could not be read as a recording.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be opened or read.
    #[error("cannot read {}: {source}: check the path and its permissions", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A folder, a device or a socket.
    #[error("{} is {kind}, not a file: name a file that `profiler run --json` wrote", path.display())]
    NotAFile {
        /// Its path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// Larger than any recording.
    #[error(
        "{} exceeds {} MiB and is larger than any recording: name a file that `profiler run --json` wrote",
        path.display(),
        MAX_FILE_BYTES >> 20
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Nothing in it.
    #[error(
        "{} is empty: the run that should have written it may have failed; look there or measure again",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Not JSON at all.
    #[error(
        "{} is not JSON: {source}: {hint}",
        path.display()
    )]
    NotJson {
        /// The file.
        path: PathBuf,
        /// What the parser met, with line and column.
        source: serde_json::Error,
        /// What the file seems to be, and what to do.
        hint: &'static str,
    },
    /// JSON that ends too early.
    #[error(
        "{} is cut off at line {line}, column {column}: copy it again, or measure again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Line of its end, from 1.
        line: usize,
        /// Column of its end.
        column: usize,
    },
    /// JSON of something else.
    #[error(
        "{} is JSON, but not a recording: {seems}: name a file that `profiler run --json` wrote",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it seems to be.
        seems: String,
    },
    /// A series where one run was wanted.
    #[error(
        "{} holds several runs, and one is wanted: name the file of a single run", path.display()
    )]
    Runs {
        /// The file.
        path: PathBuf,
    },
    /// Written by a later program.
    #[error(
        "{} is a recording of version {version}, and this program reads up to version {newest}: \
         update profiler",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u64,
        /// The newest that is read.
        newest: u32,
    },
    /// A field is missing or of the wrong type.
    #[error(
        "{} is a damaged recording: {}: restore it from its source, or measure again",
        path.display(),
        clean(&source.to_string())
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The field, with line and column.
        source: serde_json::Error,
    },
    /// Its parts contradict each other.
    #[error(
        "{} contradicts itself: {}: it was edited or damaged; restore it, or measure again",
        path.display(),
        clean(&source.to_string())
    )]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// What disagrees.
        source: Inconsistent,
    },
}

/// The two fields that every version has. Whatever else is there is skipped, not kept.
#[derive(Deserialize)]
struct Head {
    schema: Option<Loose>,
    version: Option<Loose>,
}

/// A field of a file that may be any JSON: only what tells versions apart is kept.
#[derive(Deserialize)]
#[serde(untagged)]
enum Loose {
    Number(u64),
    Text(String),
    Other(serde::de::IgnoredAny),
}

impl Recording {
    /// Reads the file `path` and checks that it agrees with itself.
    ///
    /// # Errors
    /// A [`ReadError`] that says what the file is instead and what to do; never a panic, and never
    /// more memory than the file's size explains.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let bytes = read_bounded(path)?;
        Self::parse(&bytes, path)
    }

    /// Reads the text of a recording; `path` is for messages.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, ReadError> {
        if kind_of(bytes, path)? != Kind::Recording {
            return Err(ReadError::Runs { path: path.to_owned() });
        }
        let path = || path.to_owned();
        let recording: Self = serde_json::from_slice(bytes)
            .map_err(|source| ReadError::Malformed { path: path(), source })?;
        recording.check().map_err(|source| ReadError::Inconsistent { path: path(), source })?;
        Ok(recording)
    }
}

/// The documents that hold recordings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One run.
    Recording,
    /// Several runs, kept apart.
    Series,
}

/// What a file holds, by its first fields.
pub(super) fn kind_of(bytes: &[u8], path: &Path) -> Result<Kind, ReadError> {
    let path = || path.to_owned();
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(ReadError::Empty { path: path() });
    }
    let head: Head = match serde_json::from_slice(bytes) {
        Ok(head) => head,
        Err(error) => return Err(not_a_profile(bytes, path(), error)),
    };
    let foreign = |seems| ReadError::Foreign { path: path(), seems };
    let (schema, version) = match (head.schema, head.version) {
        (Some(Loose::Text(schema)), version) => (schema, version),
        _ => return Err(foreign(seems_to_be(bytes).to_owned())),
    };
    let (kind, newest) = match schema.as_str() {
        SCHEMA => (Kind::Recording, VERSION),
        SERIES_SCHEMA => (Kind::Series, SERIES_VERSION),
        _ => {
            let shown: String = schema.chars().take(60).flat_map(char::escape_debug).collect();
            return Err(foreign(format!("its `schema` is `{shown}`, not `{SCHEMA}`")));
        }
    };
    match version {
        Some(Loose::Number(version)) if version > u64::from(newest) => {
            Err(ReadError::Newer { path: path(), version, newest })
        }
        Some(Loose::Number(_)) => Ok(kind),
        _ => Err(foreign("its `version` is missing or not a whole number".to_owned())),
    }
}

/// The whole file or pipe, if it is of a sensible size. Standard input is `-`.
pub(super) fn read_bounded(path: &Path) -> Result<Vec<u8>, ReadError> {
    let io_error = |source| ReadError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)
    } else {
        // A FIFO is fine: a shell's `<(command)` is one. It is waited for until somebody writes.
        let kind = std::fs::metadata(path).map_err(io_error)?.file_type();
        if !kind.is_file() && !kind.is_fifo() {
            let kind = if kind.is_dir() { "a folder" } else { "a device or socket" };
            return Err(ReadError::NotAFile { path: path.to_owned(), kind });
        }
        let file = File::open(path).map_err(io_error)?;
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)
    };
    read.map_err(io_error)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ReadError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}

/// Sorts a parser's refusal of the head.
fn not_a_profile(bytes: &[u8], path: PathBuf, error: serde_json::Error) -> ReadError {
    let opens = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    match error.classify() {
        Category::Eof if matches!(opens, Some(b'{' | b'[')) => {
            ReadError::Truncated { path, line: error.line(), column: error.column() }
        }
        // JSON, and not an object with such fields.
        Category::Data => ReadError::Foreign { path, seems: seems_to_be(bytes).to_owned() },
        Category::Eof | Category::Syntax | Category::Io => {
            ReadError::NotJson { path, source: error, hint: hint(bytes) }
        }
    }
}

/// What JSON without this program's `schema` seems to be.
fn seems_to_be(bytes: &[u8]) -> &'static str {
    let has = |needle: &[u8]| bytes.windows(needle.len()).take(1 << 20).any(|part| part == needle);
    let opens = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if opens != Some(&b'{') {
        "it is not an object"
    } else if has(b"\"traceEvents\"") {
        "it seems to be a trace for a browser's trace viewer"
    } else if has(b"\"$schema\"") {
        "it seems to be a JSON Schema"
    } else {
        "it has no `schema` field"
    }
}

/// What a file that is not JSON seems to be, and what to do.
fn hint(bytes: &[u8]) -> &'static str {
    let has = |needle: &[u8]| bytes.windows(needle.len()).take(1 << 16).any(|part| part == needle);
    if bytes.starts_with(&[0x1f, 0x8b]) || bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        "it seems to be compressed; decompress it first"
    } else if bytes.starts_with(b"tracing\x00\x00") || bytes.starts_with(&[0x17, 0x08, 0x44]) {
        "it seems to be a trace.dat of trace-cmd, not a recording"
    } else if has(b"|  ") && has(b" us ") {
        "it seems to be the text of a function_graph trace, not a recording"
    } else if bytes.starts_with(b"#[") {
        "it seems to be a HdrHistogram log, not a recording"
    } else if std::str::from_utf8(bytes).is_err() {
        "it is not text; name a file that `profiler run --json` wrote"
    } else {
        "name a file that `profiler run --json` wrote"
    }
}
