//! Results of a gate.

use serde::{Deserialize, Serialize};

use crate::recording::Meter;

use super::{ChangeRecord, Part, Statistic, subject};

/// The verdict on one figure of one handler.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Verdict {
    /// Not slower by more than its limit, as the upper bound or the counted change shows.
    Pass,
    /// Slower by more than its limit, as p-value, lower bound and floor show, or the counted change.
    Fail,
    /// Neither is shown.
    #[default]
    Inconclusive,
    /// Too few calls for the figure.
    Insufficient,
    /// The baseline lacks the handler.
    New,
    /// The candidate lacks the handler or never called it.
    Vanished,
}

/// One line of a gate: a figure against its limit or its budget.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Line {
    /// The verdict.
    pub verdict: Verdict,
    /// Whether it became faster by more than its limit.
    pub improved: bool,
    /// Why, in one line.
    pub evidence: String,
    /// What its figures are.
    #[serde(default, skip_serializing_if = "Meter::is_probes")]
    pub meter: Meter,
    /// The load profile, if runs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The handler, or the pattern of a budget that no handler matches; `operation of LOAD` for what the driver costs an
    /// operation of that load.
    pub handler: String,
    /// The figure; `null` if the whole handler is new or has vanished.
    pub statistic: Option<Statistic>,
    /// The budget; `null` if the line is about a change.
    pub budget: Option<String>,
    /// The limit, in percent of the baseline.
    pub limit_percent: Option<f64>,
    /// The floor, with the width of the histogram's bucket added.
    pub floor_ns: Option<f64>,
    /// The same where instructions were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_instructions: Option<f64>,
    /// p-value of being slower, adjusted for all comparisons; counted calls have none.
    pub p_adjusted: Option<f64>,
    /// The figures of both sides.
    pub change: Option<ChangeRecord>,
}

impl Line {
    /// A verdict and its reason, as yet on nothing.
    pub(super) fn new(verdict: Verdict, evidence: impl Into<String>) -> Self {
        Self { verdict, evidence: evidence.into(), ..Self::default() }
    }

    /// The verdict where a side has no value.
    pub(super) fn without_value() -> Self {
        let why = "not known of all runs of both sides, so that there is nothing to compare";
        Self::new(Verdict::Inconclusive, why)
    }

    /// The handler, with its load profile if there are several.
    pub fn subject(&self) -> String {
        subject(self.part.as_deref(), &self.handler)
    }

    /// Whether neither is shown: that it is slower, and that it is not.
    pub fn is_undecided(&self) -> bool {
        matches!(self.verdict, Verdict::Inconclusive | Verdict::Insufficient | Verdict::Vanished)
    }

    /// Which line of a handler or operation stands for it, the lowest: one that is beyond its limit, then the average.
    pub(crate) fn rank(&self) -> u8 {
        match self.statistic {
            _ if self.verdict == Verdict::Fail || self.improved => 0,
            Some(Statistic::Avg) => 1,
            _ => 2,
        }
    }

    /// Whether it is about how often a handler is called.
    pub fn is_of_calls(&self) -> bool {
        self.statistic == Some(Statistic::Count)
    }

    /// The figure or the budget, or `handler` if the line is about the whole handler.
    pub fn figure(&self) -> String {
        match (self.statistic, &self.budget) {
            (Some(statistic), None) => statistic.to_string(),
            (_, Some(budget)) => format!("budget {budget}"),
            (None, None) => "handler".to_owned(),
        }
    }
}

/// The outcome of a gate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Outcome {
    /// Every figure passed.
    #[default]
    Pass,
    /// At least one figure failed.
    Fail,
    /// None failed, and at least one could not be decided.
    Inconclusive,
    /// The runs are not comparable.
    #[strum(to_string = "not comparable")]
    NotComparable,
    /// Too few runs for any figure to fail.
    #[strum(to_string = "too few runs")]
    TooFewRuns,
}

/// The result of a gate.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gate<'a> {
    /// The outcome: inconclusive if nothing was judged.
    pub outcome: Outcome,
    /// The outcome in a sentence; a refusal has several lines.
    pub summary: String,
    /// Bound on the probability of a false alarm over all comparisons.
    pub alpha: f64,
    /// Number of comparisons, for which p-values are adjusted.
    pub comparisons: usize,
    /// The compared parts; empty if the runs are not comparable.
    pub parts: Vec<Part<'a>>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Module parameters whose defaults differ, in words.
    pub defaults: Vec<String>,
    /// The judged figures: failed ones first, then undecided ones, then the rest.
    pub lines: Vec<Line>,
}
