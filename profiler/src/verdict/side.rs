//! The two sides of a comparison.

use serde::{Deserialize, Serialize};

/// One of the two builds that are measured and compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Side {
    /// The accepted build; also the only one that is measured.
    Baseline,
    /// The judged build.
    Candidate,
}
