//! What a gate found, in numbers. The sentences are `export`'s.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ChangeRecord, Design, Enough, Part, Refusal, Statistic};

/// What is said of one figure of one handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is not slower by more than its limit: the upper bound shows it.
    Pass,
    /// It is slower by more than its limit: chance, lower bound and floor all show it.
    Fail,
    /// Neither can be shown.
    Inconclusive,
    /// Too few calls for the figure to mean anything.
    Insufficient,
    /// The baseline has not got the handler.
    New,
    /// The candidate has not got the handler, or it was never called there.
    Vanished,
}

impl Verdict {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Inconclusive => "inconclusive",
            Self::Insufficient => "insufficient",
            Self::New => "new",
            Self::Vanished => "vanished",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One line of a gate: a figure against its limit or its budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "Line"))]
pub struct Line<E = Evidence> {
    /// What is said of it.
    pub verdict: Verdict,
    /// Whether it became faster by more than its limit.
    pub improved: bool,
    /// Why, in one line.
    pub evidence: E,
    /// The load profile, where runs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The handler, or the pattern of a budget that no handler matches.
    pub handler: String,
    /// The figure; `null` where the whole handler is new or gone.
    pub statistic: Option<Statistic>,
    /// The budget that this is about; `null` where it is about a change.
    pub budget: Option<String>,
    /// How much slower it may become, in percent of the baseline.
    pub limit_percent: Option<f64>,
    /// Least change that counts, with what the histogram's bucket adds to it.
    pub floor_ns: Option<f64>,
    /// Chance of its being slower by chance, adjusted for all comparisons.
    pub p_adjusted: Option<f64>,
    /// The figures behind it.
    pub change: Option<ChangeRecord>,
}

/// What a gate says in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every figure passed.
    Pass,
    /// At least one figure failed.
    Fail,
    /// None failed, and at least one could not be decided.
    Inconclusive,
    /// The runs may not be compared.
    NotComparable,
    /// So few runs that none could fail.
    TooFewRuns,
}

impl Outcome {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Inconclusive => "inconclusive",
            Self::NotComparable => "not comparable",
            Self::TooFewRuns => "too few runs",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a line has its verdict. What its [`ChangeRecord`] has is not repeated.
#[derive(Debug, Clone, Copy, PartialEq)]
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
        /// Whose run it is; `None` where there is no baseline.
        side: Option<Side>,
    },
    /// A side has no value.
    NoValue,
    /// Too many calls of a run were lost.
    Lost {
        /// The share that was lost.
        share: f64,
        /// The share that may be.
        allowed: f64,
    },
    /// Too few runs for bounds of the change.
    NoBounds,
    /// The change and its bounds, held against a limit.
    Change {
        /// The limit that decided.
        limit: Threshold,
        /// What they show.
        shown: Shown,
    },
    /// The level of the candidate, held against a budget.
    Spent {
        /// The level, in nanoseconds.
        value: f64,
        /// Its lower and upper bound.
        bounds: [f64; 2],
        /// What it has to stay below.
        below_ns: f64,
        /// Runs that have a value.
        runs: usize,
    },
    /// Too many calls were lost for a budget.
    SpentLost {
        /// The level, in nanoseconds.
        value: f64,
        /// The share that was lost.
        share: f64,
        /// The share that may be.
        allowed: f64,
    },
    /// No call that a budget could be held against.
    NoCall,
    /// No handler of the candidate matches a budget's pattern.
    NoMatch,
}

/// The baseline or the candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What is compared to.
    Baseline,
    /// What is judged.
    Candidate,
}

/// Which of the two limits of a figure is the wider one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// A share of the baseline.
    Share(f64),
    /// The least change that counts, in nanoseconds.
    Floor(f64),
}

/// What a change's bounds and chances show. Chances are adjusted for all comparisons.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shown {
    /// Slower by more than the limit.
    Slower {
        /// The chance of that without a change.
        p: f64,
    },
    /// The bounds are above the limit, and the chance is too high.
    Overlap {
        /// The chance of that without a change.
        p: f64,
    },
    /// Faster by more than the limit.
    Faster {
        /// The chance of that without a change.
        p: f64,
    },
    /// Not slower by more than the limit.
    Within,
    /// The limit is between the bounds.
    Undecided,
}

/// What a gate found.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate<'a> {
    /// What it comes to.
    pub conclusion: Conclusion,
    /// Chance of a false alarm that was allowed over all comparisons together.
    pub alpha: f64,
    /// Number of comparisons that were adjusted for.
    pub comparisons: usize,
    /// The parts that were compared; empty if they may not be.
    pub parts: Vec<Part<'a>>,
    /// What a reader has to know.
    pub notes: Vec<Note>,
    /// The judged figures: what failed first, then what is undecided, then the rest.
    pub lines: Vec<Line>,
}

/// What a gate comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum Conclusion {
    /// The figures were judged.
    Judged(Tally),
    /// The runs may not be compared.
    NotComparable(Refusal),
    /// No figure could fail.
    TooFewRuns(TooFewRuns),
}

/// How many lines have which verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Slower.
    pub failed: usize,
    /// Not decided, for whatever reason; handlers that are gone are among them unless that is allowed.
    pub undecided: usize,
    /// Not slower.
    pub passed: usize,
    /// Faster, among those that passed.
    pub improved: usize,
    /// Handlers of the candidate alone.
    pub new: usize,
    /// Handlers of the baseline alone.
    pub vanished: usize,
}

/// Runs of which even the largest regression could not be shown.
#[derive(Debug, Clone, PartialEq)]
pub struct TooFewRuns {
    /// The part.
    pub part: Option<String>,
    /// Its runs.
    pub design: Design,
    /// Comparisons that share alpha.
    pub comparisons: usize,
    /// The chance that each of them has to fall below.
    pub level: f64,
    /// Runs that would do.
    pub enough: Enough,
}

/// What a reader has to know of the runs and the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// There is no baseline, so that only budgets are judged.
    OnlyBudgets,
    /// A part that only one side has.
    OnlyOn(Side, Option<String>),
    /// Both sides of this part are of the same build.
    SameBuild(Option<String>),
    /// On the wall clock, the sides of this part did not take turns.
    NotInTurns(Option<String>),
    /// A pattern of the rule that no handler matches.
    Unmatched(String),
}

impl Evidence {
    /// Whether it shows a handler that became faster by more than its limit.
    #[must_use]
    pub fn improved(&self) -> bool {
        matches!(self, Self::Change { shown: Shown::Faster { .. }, .. })
    }

    /// The verdict that follows from it.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match *self {
            Self::Gone => Verdict::Vanished,
            Self::New => Verdict::New,
            Self::NeverCalled | Self::FewCalls { .. } | Self::NoCall => Verdict::Insufficient,
            Self::NoValue
            | Self::Lost { .. }
            | Self::NoBounds
            | Self::SpentLost { .. }
            | Self::NoMatch => Verdict::Inconclusive,
            Self::Change { shown, .. } => match shown {
                Shown::Slower { .. } => Verdict::Fail,
                Shown::Faster { .. } | Shown::Within => Verdict::Pass,
                Shown::Overlap { .. } | Shown::Undecided => Verdict::Inconclusive,
            },
            Self::Spent { bounds: [lower, upper], below_ns, .. } => {
                if upper < below_ns {
                    Verdict::Pass
                } else if lower >= below_ns {
                    Verdict::Fail
                } else {
                    Verdict::Inconclusive
                }
            }
        }
    }
}

impl Conclusion {
    /// The outcome. That nothing was judged is inconclusive.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::NotComparable(_) => Outcome::NotComparable,
            Self::TooFewRuns(_) => Outcome::TooFewRuns,
            Self::Judged(tally) if tally.failed > 0 => Outcome::Fail,
            Self::Judged(tally) if tally.undecided > 0 || tally.passed == 0 => {
                Outcome::Inconclusive
            }
            Self::Judged(_) => Outcome::Pass,
        }
    }
}
