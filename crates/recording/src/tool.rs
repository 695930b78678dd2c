//! The program that wrote a recording.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The program that wrote a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Tool {
    /// This program.
    pub fn this() -> Self {
        Self { name: "profiler".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}
