//! Changes of figures, and the results of a gate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::error::exit;
use profiler_recording::Meter;

use super::{Part, Statistic};

/// A figure of a handler on both sides, with its runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChangeRecord {
    /// Name of the load profile, if runs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The handler; `operation of LOAD` for what the driver costs an operation of that load; of runs without handlers a
    /// quantity of their load, such as `load connect: service time`.
    pub handler: String,
    /// Module that holds it; `null` is the kernel image.
    pub module: Option<String>,
    /// The figure.
    pub statistic: Statistic,
    /// `ns`, `instructions`, `iterations` or `calls`.
    pub unit: String,
    /// Placements that were compared; absent where calls were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placements: Option<usize>,
    /// The baseline's value, if any; counted, the median over placements.
    pub base: Option<f64>,
    /// The candidate's value, likewise.
    pub candidate: Option<f64>,
    /// Candidate minus baseline; counted, the median of that over placements.
    pub change: Option<f64>,
    /// What a single call makes of a percentile, or the kernel of an operation outside of the driver's functions, which is not in
    /// `change`; absent where it makes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_call: Option<f64>,
    /// The change if further placements, which have to decide about it, say the opposite of these; not stored.
    #[serde(skip)]
    pub(super) otherwise: Option<f64>,
    /// Lower and upper bound of the change, each at 95 %, `null` if there are too few runs; counted, the lowest and the highest of
    /// a placement.
    pub change_bounds: Option<[f64; 2]>,
    /// The change in percent of the baseline.
    pub percent: Option<f64>,
    /// The bounds of the change in percent of the baseline.
    pub percent_bounds: Option<[f64; 2]>,
    /// Exact p-value of the candidate being slower, not adjusted; counted calls have none.
    pub p_slower: Option<f64>,
    /// Exact p-value of the candidate being faster, likewise.
    pub p_faster: Option<f64>,
    /// Values of the baseline's runs; `null` is a run without a call.
    pub base_runs: Vec<Option<f64>>,
    /// Values of the candidate's runs.
    pub candidate_runs: Vec<Option<f64>>,
    /// Calls in the baseline.
    pub base_calls: Calls,
    /// Calls in the candidate.
    pub candidate_calls: Calls,
    /// Error bound from the width of a histogram's bucket: the value may be this much too high.
    pub resolution: f64,
    /// Share of lost calls, of the run with the largest.
    pub lost_share: f64,
    /// The same of the candidate's runs alone; not stored.
    #[serde(skip)]
    pub(super) candidate_lost_share: f64,
    /// Spread of the baseline's runs: largest minus smallest, over the median.
    pub base_spread: Option<f64>,
}

/// Calls of a handler on one side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Calls {
    /// In all runs.
    pub total: u64,
    /// In the run with the fewest; 0 if a run lacks the handler.
    pub fewest: u64,
    /// Whether any run has the handler at all.
    pub known: bool,
}

impl Calls {
    /// Of runs, of which some may lack the handler.
    pub(super) fn of(runs: impl Iterator<Item = Option<u64>> + Clone) -> Self {
        Self {
            total: runs.clone().flatten().fold(0, u64::saturating_add),
            fewest: runs.clone().map(Option::unwrap_or_default).min().unwrap_or(0),
            known: runs.flatten().next().is_some(),
        }
    }
}

impl ChangeRecord {
    /// What its figures are.
    pub fn meter(&self) -> Meter {
        if self.placements.is_some() { Meter::Exact } else { Meter::Probes }
    }

    /// Whether it takes further placements to say if the change is above `most`.
    pub(super) fn is_open(&self, most: f64) -> bool {
        self.otherwise.zip(self.change).is_some_and(|(one, other)| (one > most) != (other > most))
    }

    /// Whether both sides say it. Of what only some calls and operations have there is nothing to say where none has it.
    pub(super) fn is_known(&self) -> bool {
        match self.statistic {
            Statistic::Repeated | Statistic::Elsewhere => {
                self.change.is_some()
                    && [self.base, self.candidate].iter().any(|it| *it > Some(0.0))
            }
            _ => true,
        }
    }

    /// Values of the candidate's runs that have one.
    pub(super) fn candidate_values(&self) -> Vec<f64> {
        self.candidate_runs.iter().flatten().copied().collect()
    }

    /// The handler, with its load profile if there are several.
    pub fn subject(&self) -> String {
        subject(self.part.as_deref(), &self.handler)
    }
}

/// A handler, with its load profile if there are several.
pub fn subject(part: Option<&str>, handler: &str) -> String {
    match part {
        Some(part) => format!("{part}: {handler}"),
        None => handler.to_owned(),
    }
}

/// The verdict on one figure of one handler.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
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
    pub fn rank(&self) -> u8 {
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display)]
#[strum(serialize_all = "kebab-case")]
// Its number is the exit code of the program.
#[repr(u8)]
pub enum Outcome {
    /// Every figure passed.
    #[default]
    Pass = exit::OK,
    /// At least one figure failed.
    Fail = exit::REGRESSION,
    /// None failed, and at least one could not be decided.
    Inconclusive = exit::INCONCLUSIVE,
    /// The runs are not comparable.
    #[strum(to_string = "not comparable")]
    NotComparable = exit::NOT_COMPARABLE,
    /// Too few runs for any figure to fail.
    #[strum(to_string = "too few runs")]
    TooFewRuns = exit::TOO_FEW_RUNS,
}

/// The result of a gate.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gate<'a> {
    /// The outcome: inconclusive if nothing was judged.
    pub outcome: Outcome,
    /// The outcome in a sentence; a refusal has several lines.
    pub summary: String,
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
