//! Load profiles: which handlers to measure, and under which load. They are data, a TOML file a hook.
//!
//! A file of `ltp-profiles/`, of a folder of the user's or inside this program becomes a
//! [`LoadProfile`]; a [`Library`] finds it by name. The format is laid down in
//! `ltp-profiles/README.md`. Nothing here runs a load.

mod library;
mod read;

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

pub use library::{Library, LibraryError, Listed};
pub use read::BadProfile;

use crate::load::{BuiltinKind, Rate};

/// One load profile, checked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadProfile {
    /// Its name: that of the file, without `.toml`.
    pub name: String,
    /// Where it comes from.
    pub origin: Origin,
    /// One line on what it measures.
    pub title: String,
    /// Kernel modules that may hold the handlers: the first that is loaded does.
    pub modules: Vec<String>,
    /// What to know of the load and of its hits.
    pub notes: String,
    /// What it measures.
    #[serde(flatten)]
    pub work: Work,
}

/// What a profile measures.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Handlers under one load.
    Hook(Box<Hook>),
    /// Other profiles, by name, one after the other.
    Parts(Vec<String>),
}

/// Handlers, and the loads that call them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hook {
    /// The handlers, in the order of the report; never empty.
    pub handlers: Vec<Wanted>,
    /// Parameter of the module that has to be 1 for the hook to be there.
    pub parameter: Option<String>,
    /// The tests of LTP that call them.
    pub ltp: Option<LtpTests>,
    /// The built-in load that calls them.
    pub builtin: Option<Builtin>,
}

/// One handler and how often a run should see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wanted {
    /// Name or glob.
    pub name: String,
    /// Calls below which a run says little of it, 0 where nothing is promised; of a glob, those of each
    /// function that matches.
    pub least_hits: u64,
}

/// A choice of LTP's tests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LtpTests {
    /// The file in LTP's `runtest` folder.
    pub suite: String,
    /// Regular expression, searched for in the tests' names.
    pub tests: String,
}

/// A built-in load with what it needs to reach the profile's hits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Builtin {
    /// Which one.
    pub kind: BuiltinKind,
    /// Threads.
    pub workers: u32,
    /// Operations a second over all workers; `None` is a closed loop.
    pub rate: Option<Rate>,
    /// Operations in all, where the user asked for no other end.
    pub operations: u64,
}

/// Where a profile comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// This program carries it.
    BuiltIn(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::BuiltIn(name) => write!(f, "built-in {name}.toml"),
        }
    }
}

impl LoadProfile {
    /// The handlers and loads, unless it is made of parts.
    #[must_use]
    pub fn hook(&self) -> Option<&Hook> {
        match &self.work {
            Work::Hook(hook) => Some(hook),
            Work::Parts(_) => None,
        }
    }
}
