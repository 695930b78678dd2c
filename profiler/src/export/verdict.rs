//! What a comparison or a gate found, as it is stored: numbers, and the sentences about them.

mod words;

use serde::{Deserialize, Serialize};

use crate::profile::{Clock, Tool};
use crate::verdict::{
    self, CONFIDENCE, ChangeRecord, DesignKind, Gate, Line, Outcome, Part, Run, Sides, subject,
};
pub(crate) use words::{ns, refusal};

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
    pub fn of(sides: &Sides<'_>) -> Self {
        Self {
            schema: COMPARE_SCHEMA.to_owned(),
            version: REPORT_VERSION,
            tool: Tool::this(),
            confidence: CONFIDENCE,
            parts: sides.parts.iter().map(PartRecord::of).collect(),
            notes: sides.notes.iter().map(words::note).collect(),
            changes: sides.parts.iter().flat_map(verdict::changes).collect(),
        }
    }
}

impl PartRecord {
    fn of(part: &Part<'_>) -> Self {
        let side = |runs: &[&Run]| SideRecord {
            runs: runs.iter().map(|run| run.name.clone()).collect(),
            modules: runs.first().map_or_else(Vec::new, |run| {
                let build = |(name, id): (&str, Option<&str>)| {
                    format!("{name} {}", id.unwrap_or("of an unknown build"))
                };
                run.builds().map(build).collect()
            }),
        };
        Self {
            name: part.name.clone(),
            clock: part.clock(),
            design: part.design.kind(),
            words: words::design(&part.design),
            smallest_p: part.design.smallest_p(),
            base: side(&part.base),
            candidate: side(&part.candidate),
        }
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
    pub lines: Vec<Line<String>>,
}

impl GateReport {
    /// What `gate` found; `exit_code` is what the program ends with.
    #[must_use]
    pub fn of(gate: Gate<'_>, exit_code: u8) -> Self {
        Self {
            schema: GATE_SCHEMA.to_owned(),
            version: REPORT_VERSION,
            tool: Tool::this(),
            outcome: gate.conclusion.outcome(),
            exit_code,
            summary: words::summary(&gate),
            alpha: gate.alpha,
            confidence: CONFIDENCE,
            comparisons: gate.comparisons,
            parts: gate.parts.iter().map(PartRecord::of).collect(),
            notes: gate.notes.iter().map(words::note).collect(),
            lines: gate.lines.into_iter().map(in_words).collect(),
        }
    }
}

fn in_words(line: Line) -> Line<String> {
    Line {
        evidence: words::evidence(&line),
        verdict: line.verdict,
        improved: line.improved,
        part: line.part,
        handler: line.handler,
        statistic: line.statistic,
        budget: line.budget,
        limit_percent: line.limit_percent,
        floor_ns: line.floor_ns,
        p_adjusted: line.p_adjusted,
        change: line.change,
    }
}

impl<E> Line<E> {
    /// The handler, with its load profile where there are several.
    #[must_use]
    pub fn subject(&self) -> String {
        subject(self.part.as_deref(), &self.handler)
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
