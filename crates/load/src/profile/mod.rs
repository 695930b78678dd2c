//! Load profiles: which handlers to measure under which load, as TOML files, one a hook.
//!
//! A [`Library`] finds a [`LoadProfile`] by name: in a folder of the user, of the system, or in this program,
//! which contains all of `ltp-profiles/`. The format is documented in `ltp-profiles/README.md`. Nothing here
//! runs a load.

mod library;
mod read;

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use library::{Library, Listed};

use crate::{BuiltinKind, Rate};

/// A valid load profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadProfile {
    /// The name of its file without `.toml`.
    pub name: String,
    /// Where it was found.
    pub origin: Origin,
    /// The text of its file.
    #[serde(skip)]
    pub text: String,
    /// What it measures, in one line.
    pub title: String,
    /// Kernel modules that may contain the handlers; the first that is loaded is taken.
    pub modules: Vec<String>,
    /// Notes on the load and its hits.
    pub notes: String,
    /// What it measures, unless it has parts.
    #[serde(skip_serializing_if = "Hook::is_empty")]
    pub hook: Hook,
    /// Names of other profiles, run one after the other in its place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
}

/// Handlers, and the loads that call them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Hook {
    /// The handlers, in the order of the report; empty in a profile of parts alone.
    pub handlers: Vec<Wanted>,
    /// Module parameter that has to be 1 for the hook to be installed.
    pub parameter: Option<String>,
    /// The tests of LTP that call them.
    pub ltp: Option<LtpTests>,
    /// The built-in load that calls them.
    pub builtin: Option<Builtin>,
}

/// A handler, and how many calls a run needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// Name or glob.
    #[serde(deserialize_with = "read::handler_name")]
    pub name: String,
    /// Fewer calls are a warning; 0 is none. Of a glob, calls of each function that matches.
    pub least_hits: u64,
}

/// A selection of LTP tests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LtpTests {
    /// The file in LTP's `runtest` folder.
    #[serde(deserialize_with = "read::name")]
    pub suite: String,
    /// Regular expression that the tests' names have to match.
    #[serde(deserialize_with = "read::regex")]
    pub tests: String,
}

/// A built-in load that makes the calls that the profile needs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Builtin {
    /// Which one.
    pub kind: BuiltinKind,
    /// Threads.
    #[serde(default = "read::one", deserialize_with = "read::workers")]
    pub workers: u32,
    /// Operations a second over all workers; `None` is a closed loop.
    #[serde(default, deserialize_with = "read::rate")]
    pub rate: Option<Rate>,
    /// Operations in total, unless the user asks for another end.
    #[serde(deserialize_with = "read::operations")]
    pub operations: u64,
}

/// Where a profile was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    File(PathBuf),
    /// In this program.
    BuiltIn(&'static str),
}

impl Origin {
    /// The name of the profile: that of its file without `.toml`.
    fn name(&self) -> String {
        match self {
            Self::File(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            Self::BuiltIn(name) => (*name).to_owned(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::BuiltIn(name) => write!(f, "built-in {name}.toml"),
        }
    }
}

impl Hook {
    fn is_empty(&self) -> bool {
        self.handlers.is_empty()
    }
}
