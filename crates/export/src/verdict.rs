//! Results of a comparison and of a gate as they are stored.

mod causes;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::text::{listed, plural};
use profiler_recording::unlike::What;
use profiler_recording::{Clock, Meter, Tool};
use profiler_verdict::{
    self as verdict, CONFIDENCE, ChangeRecord, DesignKind, Gate, HookReport, Line, Outcome, Part,
    Rule, Run, Sides, Verdict, load_of,
};

pub use causes::{Cause, Changed, Reached};

/// The field `schema` of a stored comparison.
pub const COMPARE_SCHEMA: &str = "profiler/compare";
/// The field `schema` of a stored gate.
pub const GATE_SCHEMA: &str = "profiler/gate";
/// Version of both formats.
pub const REPORT_VERSION: u32 = 1;

/// Differences between a baseline and a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompareReport {
    /// Always `profiler/compare`.
    #[schemars(extend("const" = COMPARE_SCHEMA))]
    pub schema: String,
    /// Version of the format.
    #[schemars(extend("const" = REPORT_VERSION))]
    pub version: u32,
    /// The program that wrote this.
    pub tool: Tool,
    /// Confidence of each bound, but for counted calls.
    pub confidence: f64,
    /// The compared parts, one per load profile.
    pub parts: Vec<PartRecord>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Every figure of every handler.
    pub changes: Vec<ChangeRecord>,
}

/// The runs of one load profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PartRecord {
    /// Name of the load profile, where runs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The clock of the durations.
    pub clock: Clock,
    /// Whether runs were compared within boots, or within placements.
    pub design: DesignKind,
    /// The design of the comparison, in words.
    pub words: String,
    /// The smallest p-value that these runs can give; 1 where calls were counted, which have none.
    pub smallest_p: f64,
    /// The baseline.
    pub base: SideRecord,
    pub candidate: SideRecord,
}

/// The runs of one side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SideRecord {
    /// The runs, by their names.
    pub runs: Vec<String>,
    /// The builds of the modules, in words.
    pub modules: Vec<String>,
    /// Hosts that merged recordings are of; absent if none is merged. Told apart by boot: one that was restarted between two
    /// recordings counts again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<usize>,
}

impl CompareReport {
    /// The differences between the sides.
    pub fn of(sides: &Sides<'_>) -> Self {
        Self {
            schema: COMPARE_SCHEMA.to_owned(),
            version: REPORT_VERSION,
            tool: Tool::this(),
            confidence: CONFIDENCE,
            parts: sides.parts.iter().map(PartRecord::of).collect(),
            notes: sides.notes.clone(),
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
            hosts: hosts(runs),
        };
        Self {
            name: part.name.clone(),
            clock: part.clock(),
            design: part.design.kind,
            words: verdict::design(&part.design, part.meter()),
            smallest_p: match part.meter() {
                Meter::Exact => 1.0,
                Meter::Probes => part.design.smallest_p(),
            },
            base: side(&part.base),
            candidate: side(&part.candidate),
        }
    }
}

fn hosts(runs: &[&Run]) -> Option<usize> {
    let is_merged = runs.iter().any(|run| !run.recording.sources.is_empty());
    let boots = runs.iter().flat_map(|Run { recording, .. }| {
        let own = recording.sources.is_empty().then_some(&recording.host.boot_id);
        own.into_iter().chain(recording.sources.iter().map(|source| &source.boot_id))
    });
    is_merged.then(|| boots.collect::<BTreeSet<_>>().len())
}

/// The result of a gate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GateReport {
    /// Always `profiler/gate`.
    #[schemars(extend("const" = GATE_SCHEMA))]
    pub schema: String,
    /// Version of the format.
    #[schemars(extend("const" = REPORT_VERSION))]
    pub version: u32,
    /// The program that wrote this.
    pub tool: Tool,
    pub outcome: Outcome,
    /// The exit code of the outcome.
    pub exit_code: u8,
    /// The outcome in a sentence.
    pub summary: String,
    /// Bound on the probability of a false alarm over all comparisons.
    pub alpha: f64,
    /// Confidence of each bound, but for counted calls.
    pub confidence: f64,
    /// Number of comparisons, for which p-values are adjusted; counted calls have none.
    pub comparisons: usize,
    /// The compared parts; empty if the runs are not comparable.
    pub parts: Vec<PartRecord>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// The functions that made handlers fail or become faster, where calls were counted, each once with all that it reaches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// Module parameters whose defaults differ between the builds, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub defaults: Vec<String>,
    /// The candidate beside the last release, if that was asked for. `outcome` and `exit_code` are of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<Box<GateReport>>,
    /// What differs between the code of two builds that the gate has measured, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<String>,
    /// What both builds register, where the runs say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<HookReport>,
    /// What was not judged, if the gate has chosen what to measure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
    /// The judged figures: failed ones first, then undecided ones, then the rest.
    pub lines: Vec<Line>,
}

/// What a gate of two builds did not judge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftOut {
    /// Handlers that no load called.
    pub unreached: Vec<String>,
    /// Figures that have too few calls, in words.
    pub not_judged: Vec<String>,
    /// What is no part of a pass, in words: loads that could not do what was asked, and kernels on which no handler is judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
}

/// All that a gate decides by.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Runs of the baseline and of the candidate.
    pub runs: [Vec<Run>; 2],
    /// What may differ between them.
    pub allowed: Vec<What>,
    /// Whether runs of one boot are independent of each other.
    pub independent: bool,
    pub rule: Rule,
    /// What differs between two builds, in words.
    pub changed: Option<String>,
    /// Whether that is nothing, and there are no runs therefore.
    pub is_equal: bool,
    /// Parameters whose defaults differ, if builds say it; else runs do.
    pub defaults: Option<Vec<String>>,
    /// What both builds register, where the runs say it.
    pub registered: Option<HookReport>,
    /// What was not judged, if the gate has chosen what to measure; then the report is for a reader who has not made the recordings.
    pub left_out: Option<LeftOut>,
    /// A note for the reader, beside those on the runs.
    pub note: Option<String>,
    /// The last release beside the candidate.
    pub release: Option<Box<Evidence>>,
}

impl Evidence {
    /// The runs, judged by the rule.
    fn judged(&self) -> Gate<'_> {
        if let (true, Some(words)) = (self.is_equal, &self.changed) {
            let summary =
                format!("code and data of both builds are equal ({words}): nothing was measured");
            return Gate { summary, ..Gate::default() };
        }
        let [base, candidate] = &self.runs;
        let sides = Sides::new(base, candidate, &self.allowed, self.independent);
        verdict::gate(sides, &self.rule)
    }

    /// The worst of the figures' outcome and of what follows from all that is beside them.
    fn outcome(&self, gate: &Gate<'_>, release: Option<&GateReport>) -> Outcome {
        use Outcome::{Fail, Inconclusive, NotComparable, Pass, TooFewRuns};
        let of_hooks = match &self.registered {
            // A refusal stays one.
            _ if matches!(gate.outcome, NotComparable | TooFewRuns) => Pass,
            Some(of) if self.rule.require_reached && !of.unreached.is_empty() => Fail,
            Some(of) if !of.undecided.is_empty() => Inconclusive,
            Some(of) if of.hooks > 0 && of.unreached.len() == of.hooks => Inconclusive,
            _ => Pass,
        };
        // Operations alone are no verdict on a driver of which nothing ran.
        let has_handlers = gate.lines.iter().any(|line| load_of(&line.handler).is_none());
        let of_left_out = match &self.left_out {
            Some(of) if !of.failed.is_empty() || !has_handlers && !self.is_equal => Inconclusive,
            _ => Pass,
        };
        let all = [gate.outcome, of_hooks, of_left_out, release.map_or(Pass, |it| it.outcome)];
        let from_best = [Pass, Inconclusive, TooFewRuns, NotComparable, Fail];
        from_best.into_iter().rfind(|it| all.contains(it)).unwrap_or_default()
    }
}

impl GateReport {
    /// The verdict on the evidence.
    pub fn of(evidence: &Evidence) -> Self {
        let gate = evidence.judged();
        let release = evidence.release.as_deref().map(|release| Box::new(Self::of(release)));
        let outcome = evidence.outcome(&gate, release.as_deref());
        Self {
            schema: GATE_SCHEMA.to_owned(),
            version: REPORT_VERSION,
            tool: Tool::this(),
            outcome,
            exit_code: outcome as u8,
            alpha: evidence.rule.alpha,
            confidence: CONFIDENCE,
            comparisons: gate.comparisons,
            parts: gate.parts.iter().map(PartRecord::of).collect(),
            causes: causes::causes(&gate),
            summary: gate.summary,
            notes: gate.notes.into_iter().chain(evidence.note.clone()).collect(),
            defaults: evidence.defaults.clone().unwrap_or(gate.defaults),
            lines: gate.lines,
            changed: evidence.changed.clone(),
            registered: evidence.registered.clone(),
            left_out: evidence.left_out.clone(),
            release,
        }
    }

    /// Whether nothing was measured, because both builds are equal.
    pub fn is_of_equal(&self) -> bool {
        self.outcome == Outcome::Pass && self.parts.is_empty()
    }

    /// Whether nothing was judged.
    pub fn is_refused(&self) -> bool {
        matches!(self.outcome, Outcome::NotComparable | Outcome::TooFewRuns)
    }

    /// The outcome in a sentence: as in the report's text.
    pub fn sentence(&self) -> String {
        let own = match self.left_out {
            None if !self.is_refused() => self.coverage() + &self.summary,
            _ => self.headline(),
        };
        match &self.release {
            Some(release) => format!("{own}; beside the release: {}", release.headline()),
            None => own,
        }
    }

    /// The outcome in a line for a reader, of what was measured itself.
    fn headline(&self) -> String {
        if self.is_refused() || self.is_of_equal() {
            return self.summary.clone();
        }
        let (judged, _) = self.subjects(|_| true);
        let (more_often, _) = self.subjects(|it| it.verdict == Verdict::Fail && it.is_of_calls());
        let (slower, slower_loads) =
            self.subjects(|it| it.verdict == Verdict::Fail && !it.is_of_calls());
        let (faster, faster_loads) = self.subjects(|line| line.improved);
        let (undecided, undecided_loads) = self.subjects(Line::is_undecided);
        let mut text = self.coverage();
        text += &match slower {
            _ if judged == 0 => "no load reached a handler".to_owned(),
            0 => "no handler became slower".to_owned(),
            more => format!("{more} handler{} became slower", plural(more as u64)),
        };
        for (count, what) in
            [(more_often, "called more often"), (faster, "faster"), (undecided, "undecided")]
        {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        if judged > 0 {
            text += &format!(", of {judged}");
        }
        let where_slower = match slower {
            0 => "became slower: the cost lies around the handlers",
            _ => "became slower, too",
        };
        for (loads, what) in [
            (slower_loads, where_slower),
            (faster_loads, "became faster"),
            (undecided_loads, "is undecided"),
        ] {
            if !loads.is_empty() {
                text += &format!("; an operation of {} {what}", listed(&loads));
            }
        }
        text
    }

    /// How many handlers, and which loads by their operations, have such a line; of operations no budget counts.
    fn subjects(&self, is: fn(&Line) -> bool) -> (usize, Vec<&str>) {
        let (mut handlers, mut loads) = (BTreeSet::new(), BTreeSet::new());
        for line in self.lines.iter().filter(|line| is(line)) {
            match load_of(&line.handler) {
                None => {
                    handlers.insert(line.subject());
                }
                Some(load) if line.budget.is_none() => {
                    loads.insert(load);
                }
                Some(_) => {}
            }
        }
        (handlers.len(), Vec::from_iter(loads))
    }

    /// How many hooks were reached and operations judged, for the headline; empty where hooks are not known.
    fn coverage(&self) -> String {
        let Some(HookReport { hooks, unreached, .. }) = &self.registered else {
            return String::new();
        };
        let (_, operations) = self.subjects(|_| true);
        let operations = operations.len();
        let reached = hooks - unreached.len().min(*hooks);
        format!(
            "{reached} of {hooks} hook{} reached, {operations} operation{}; ",
            plural(*hooks as u64),
            plural(operations as u64)
        )
    }
}
