//! Results of a gate, in numbers. The sentences are in `export::verdict`.

use serde::{Deserialize, Serialize};

use crate::recording::Meter;

use super::{ChangeRecord, Part, Side, Statistic};

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
#[cfg_attr(test, schemars(rename = "Line"))]
pub struct Line<E = Evidence> {
    /// The verdict.
    pub verdict: Verdict,
    /// Whether it became faster by more than its limit.
    pub improved: bool,
    /// Why, in one line.
    pub evidence: E,
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
    /// A line without figures.
    pub(super) fn new(part: Option<String>, handler: String, evidence: Evidence) -> Self {
        Self {
            verdict: evidence.verdict(),
            improved: evidence.improved(),
            evidence,
            part,
            handler,
            ..Self::default()
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

/// The reason of a verdict, apart from what [`ChangeRecord`] has.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub enum Evidence {
    /// Only the baseline called the handler.
    Gone,
    /// Only the candidate called it.
    New,
    /// Neither side called it.
    NeverCalled,
    /// Some run has fewer calls than the figure needs.
    FewCalls {
        /// Calls that each run needs.
        needed: u64,
        /// Calls of the run with the fewest.
        fewest: u64,
        /// The side of that run; `None` if there is no baseline.
        side: Option<Side>,
    },
    /// A side has no value.
    #[default]
    NoValue,
    /// Too many calls of a run were lost.
    Lost {
        /// The share that was lost.
        share: f64,
        /// The share that may be lost.
        allowed: f64,
    },
    /// Too few runs for bounds of the change.
    NoBounds,
    /// The change and its bounds against a limit.
    Change {
        /// The limit that decided.
        limit: Threshold,
        /// What the bounds show.
        shown: Shown,
    },
    /// The candidate's figure against a budget.
    Spent {
        /// The figure, in the budget's unit.
        value: f64,
        /// Its lower and upper bound, or the lowest and highest run where calls were counted.
        bounds: [f64; 2],
        /// The budget.
        below: f64,
        /// Whether calls were counted, so that the figure alone decides.
        counted: bool,
        /// Runs that have a value.
        runs: usize,
    },
    /// The limit or the budget is in the other unit than the figures.
    OtherUnit,
    /// No handler of the candidate matches a budget's pattern.
    NoMatch,
}

/// The wider one of a figure's limit and floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// A share of the baseline.
    Share(f64),
    /// The floor, in the figure's unit.
    Floor(f64),
    /// A limit in the figure's unit.
    By(f64),
}

/// What a change's bounds and p-values show, or the change alone where calls were counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shown {
    /// Slower by more than the limit.
    Slower {
        /// Adjusted p-value; counted calls have none.
        p: Option<f64>,
    },
    /// The bounds are above the limit, but the p-value is not below alpha.
    Overlap {
        /// Adjusted p-value.
        p: f64,
    },
    /// Faster by more than the limit.
    Faster {
        /// Adjusted p-value; counted calls have none.
        p: Option<f64>,
    },
    /// Not slower by more than the limit.
    Within,
    /// Called less often by more than the limit.
    Fewer,
    /// The limit is between the bounds.
    Undecided,
}

/// The result of a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate<'a> {
    /// The conclusion.
    pub conclusion: Conclusion,
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

/// The conclusion of a gate.
#[derive(Debug, Clone, PartialEq)]
pub enum Conclusion {
    /// The figures were judged.
    Judged(Tally),
    /// The runs are not comparable: why, for a reader.
    NotComparable(String),
    /// No figure could fail.
    TooFewRuns {
        /// The number of the part whose runs are too few.
        part: usize,
        /// Level that the smallest p-value has to reach.
        level: f64,
    },
}

/// Number of lines by verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Slower.
    pub failed: usize,
    /// Not decided for any reason, including vanished handlers unless allowed.
    pub undecided: usize,
    /// Not slower.
    pub passed: usize,
    /// Faster, among those that passed.
    pub improved: usize,
    /// Handlers that only the candidate has.
    pub new: usize,
    /// Handlers that only the baseline has.
    pub vanished: usize,
}

impl Evidence {
    /// Whether it shows a handler that became faster by more than its limit.
    pub fn improved(&self) -> bool {
        matches!(self, Self::Change { shown: Shown::Faster { .. }, .. })
    }

    /// The verdict that follows from it.
    pub fn verdict(&self) -> Verdict {
        match *self {
            Self::Gone => Verdict::Vanished,
            Self::New => Verdict::New,
            Self::NeverCalled | Self::FewCalls { .. } | Self::OtherUnit => Verdict::Insufficient,
            Self::NoValue | Self::Lost { .. } | Self::NoBounds | Self::NoMatch => {
                Verdict::Inconclusive
            }
            Self::Change { shown, .. } => match shown {
                Shown::Slower { .. } => Verdict::Fail,
                Shown::Faster { .. } | Shown::Fewer | Shown::Within => Verdict::Pass,
                Shown::Overlap { .. } | Shown::Undecided => Verdict::Inconclusive,
            },
            Self::Spent { value, bounds, below, counted, .. } => {
                let [lower, upper] = if counted { [value; 2] } else { bounds };
                if upper < below {
                    Verdict::Pass
                } else if lower >= below {
                    Verdict::Fail
                } else {
                    Verdict::Inconclusive
                }
            }
        }
    }
}

impl Conclusion {
    /// The outcome: inconclusive if nothing was judged.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::NotComparable(_) => Outcome::NotComparable,
            Self::TooFewRuns { .. } => Outcome::TooFewRuns,
            Self::Judged(tally) if tally.failed > 0 => Outcome::Fail,
            Self::Judged(tally) if tally.undecided > 0 || tally.passed == 0 => {
                Outcome::Inconclusive
            }
            Self::Judged(_) => Outcome::Pass,
        }
    }
}
