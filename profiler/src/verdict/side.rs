//! The two sides of a comparison, and notes on them.

use serde::{Deserialize, Serialize};

use super::Amount;

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

/// A note on the runs or the rule.
#[derive(Debug, Clone, PartialEq)]
pub enum Note {
    /// There is no baseline, so only budgets are judged.
    OnlyBudgets,
    /// A part that only one side has.
    OnlyOn(Side, Option<String>),
    /// Both sides of this part are of the same build.
    SameBuild(Option<String>),
    /// On the wall clock, the sides of this part did not take turns.
    NotInTurns(Option<String>),
    /// Handlers that runs of this side had probes on for a part of the window, or not at all, for a daemon's budget.
    PartlyMeasured(Side, Vec<String>),
    /// A pattern of the rule that no handler matches.
    Unmatched(String),
    /// A floor in another unit than the figures of this part.
    OtherFloor(Amount, Option<String>),
    /// Of this handler another number of instructions a call order others; no limit is on it.
    Ordering(String, [f64; 2]),
}
