//! What a comparison or a gate found, as it is stored.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ChangeRecord, DesignKind, Part, Run, Statistic};
use crate::error::exit;
use crate::profile::{Clock, Tool};

/// What the field `schema` of a stored comparison says.
pub const COMPARE_SCHEMA: &str = "profiler/compare";
/// What the field `schema` of a stored gate says.
pub const GATE_SCHEMA: &str = "profiler/gate";
/// Version of both formats.
pub const REPORT_VERSION: u32 = 1;

/// What differs between a baseline and a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CompareReport {
    /// Always `profiler/compare`.
    #[cfg_attr(test, schemars(extend("const" = COMPARE_SCHEMA)))]
    pub schema: String,
    /// Version of the format.
    #[cfg_attr(test, schemars(extend("const" = REPORT_VERSION)))]
    pub version: u32,
    /// The program that wrote this.
    pub tool: Tool,
    /// Confidence of each bound.
    pub confidence: f64,
    /// The parts that were compared, one a load profile.
    pub parts: Vec<PartRecord>,
    /// What a reader has to know.
    pub notes: Vec<String>,
    /// Every figure of every handler.
    pub changes: Vec<ChangeRecord>,
}

/// The runs of one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PartRecord {
    /// Name of the load profile, where runs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What a nanosecond is.
    pub clock: Clock,
    /// Whether runs were compared within boots.
    pub design: DesignKind,
    /// How the runs lie to each other, in words.
    pub words: String,
    /// The smallest chance that the test can give with these runs.
    pub smallest_p: f64,
    /// The baseline.
    pub base: SideRecord,
    /// The candidate.
    pub candidate: SideRecord,
}

/// The runs of one side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SideRecord {
    /// The runs, by their names.
    pub runs: Vec<String>,
    /// The builds of the modules, in words.
    pub modules: Vec<String>,
}

impl CompareReport {
    /// Everything that differs between the sides.
    #[must_use]
    pub fn of(sides: &super::Sides) -> Self {
        Self {
            schema: COMPARE_SCHEMA.to_owned(),
            version: REPORT_VERSION,
            tool: Tool::this(),
            confidence: super::change::CONFIDENCE,
            parts: sides.parts.iter().map(PartRecord::of).collect(),
            notes: sides.notes.clone(),
            changes: sides.parts.iter().flat_map(super::changes).collect(),
        }
    }
}

impl PartRecord {
    /// What is stored of a part.
    #[must_use]
    pub fn of(part: &Part) -> Self {
        let side = |runs: &[Run]| SideRecord {
            runs: runs.iter().map(|run| run.name.clone()).collect(),
            modules: runs.first().map_or_else(Vec::new, |run| {
                let build = |module: &crate::kernel::module::ModuleFacts| {
                    let id = module.build_id.as_deref().or(module.srcversion.as_deref());
                    format!("{} {}", module.name, id.unwrap_or("of an unknown build"))
                };
                run.profile.modules.iter().map(build).collect()
            }),
        };
        Self {
            name: part.name.clone(),
            clock: part.clock(),
            design: part.design.kind(),
            words: part.design.words(),
            smallest_p: part.design.smallest_p(),
            base: side(&part.base),
            candidate: side(&part.candidate),
        }
    }
}

impl Part {
    /// What a nanosecond of its runs is; they agree in it, unless told not to: then the wall's, whose
    /// limits are the wider ones.
    #[must_use]
    pub fn clock(&self) -> Clock {
        let is_virtual = |run: &Run| run.profile.clock == Clock::Virtual;
        if self.base.iter().chain(&self.candidate).all(is_virtual) {
            Clock::Virtual
        } else {
            Clock::Wall
        }
    }
}

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
pub struct Line {
    /// What is said of it.
    pub verdict: Verdict,
    /// Whether it became faster by more than its limit.
    pub improved: bool,
    /// Why, in one line.
    pub evidence: String,
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

impl Line {
    /// The handler, with its load profile where there are several.
    #[must_use]
    pub fn subject(&self) -> String {
        match &self.part {
            Some(part) => format!("{part}: {}", self.handler),
            None => self.handler.clone(),
        }
    }

    /// The figure, or the budget, or what happened to the whole handler.
    #[must_use]
    pub fn figure(&self) -> String {
        match (self.statistic, &self.budget) {
            (Some(statistic), None) => statistic.to_string(),
            (_, Some(budget)) => format!("budget {budget}"),
            (None, None) => "handler".to_owned(),
        }
    }
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

    /// The program's exit code.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Pass => exit::OK,
            Self::Fail => exit::REGRESSION,
            Self::Inconclusive => exit::INCONCLUSIVE,
            Self::NotComparable => exit::NOT_COMPARABLE,
            Self::TooFewRuns => exit::TOO_FEW_RUNS,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a gate found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GateReport {
    /// Always `profiler/gate`.
    #[cfg_attr(test, schemars(extend("const" = GATE_SCHEMA)))]
    pub schema: String,
    /// Version of the format.
    #[cfg_attr(test, schemars(extend("const" = REPORT_VERSION)))]
    pub version: u32,
    /// The program that wrote this.
    pub tool: Tool,
    /// What it says in all.
    pub outcome: Outcome,
    /// The exit code that goes with it.
    pub exit_code: u8,
    /// The same in a sentence.
    pub summary: String,
    /// Chance of a false alarm that was allowed over all comparisons together.
    pub alpha: f64,
    /// Confidence of each bound.
    pub confidence: f64,
    /// Number of comparisons that were adjusted for.
    pub comparisons: usize,
    /// The parts that were compared; empty if they may not be.
    pub parts: Vec<PartRecord>,
    /// What a reader has to know.
    pub notes: Vec<String>,
    /// The judged figures: what failed first, then what is undecided, then the rest.
    pub lines: Vec<Line>,
}
