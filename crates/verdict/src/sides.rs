//! The runs of both sides, checked to be comparable.

use std::collections::{BTreeMap, BTreeSet};

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::terminal::clean;
use profiler_base::text::listed;
use profiler_recording::loads::{BuiltinKind, LoadStatus};
use profiler_recording::unlike::{Difference, Use, What, differences, failing_otherwise};
use profiler_recording::warning::{Code, SHED};
use profiler_recording::{Clock, DriverCost, HandlerRecording, Meter, Recording};

use super::Design;

/// One of the two builds that are measured and compared.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Side {
    /// The accepted build; also the only one that is measured.
    Baseline,
    /// The judged build.
    Candidate,
}

/// A run, with a name for messages: its file, and its number in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its name in messages.
    pub name: String,
    pub recording: Recording,
}

/// Runs of a baseline and of a candidate, in parts that are compared separately.
#[derive(Debug, Clone, PartialEq)]
pub struct Sides<'a> {
    /// The parts, one per load profile.
    pub parts: Vec<Part<'a>>,
    /// Notes on the choice of runs, for a reader.
    pub notes: Vec<String>,
}

/// Runs of one load profile.
#[derive(Debug, Clone, PartialEq)]
pub struct Part<'a> {
    /// Name of the load profile, if runs have one.
    pub name: Option<String>,
    /// The baseline.
    pub base: Vec<&'a Run>,
    pub candidate: Vec<&'a Run>,
    /// Which runs share boots.
    pub design: Design,
}

impl Run {
    /// The figures of a handler; without a module it is a function of the kernel image.
    pub(super) fn handler(&self, module: Option<&str>, name: &str) -> Option<&HandlerRecording> {
        let mut handlers = self.recording.handlers.iter();
        handlers.find(|handler| handler.name == name && handler.module.as_deref() == module)
    }

    /// What the driver costs an operation of the load, if that was counted.
    pub(super) fn cost(&self, load: BuiltinKind) -> Option<&DriverCost> {
        self.recording.driver_costs.iter().find(|cost| cost.load == load)
    }

    /// Its modules, by name and build.
    pub fn builds(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.recording.modules.iter().map(|module| {
            let id = module.build_id.as_deref().or(module.srcversion.as_deref());
            (module.name.as_str(), id)
        })
    }
}

impl<'a> Part<'a> {
    /// The runs of both sides that are of the load profile `name`.
    fn of(name: Option<String>, base: &'a [Run], candidate: &'a [Run], independent: bool) -> Self {
        let [base, candidate] = [base, candidate].map(|side| -> Vec<&Run> {
            side.iter().filter(|run| run.recording.part() == name.as_deref()).collect()
        });
        let design = Design::of(&recordings(&base), &recordings(&candidate), independent);
        Self { name, base, candidate, design }
    }

    /// Before notes on it: its name, if it has one.
    pub fn prefix(&self) -> String {
        self.name.as_ref().map_or(String::new(), |name| format!("{name}: "))
    }

    /// The release of the kernel that it ran on, if that is known.
    pub fn kernel(&self) -> Option<&str> {
        self.base.first()?.recording.host.kernel_release.as_deref()
    }

    /// The runs of both sides.
    pub(super) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.base.iter().chain(&self.candidate).copied()
    }

    /// What the figures of handlers are: all runs have one meter.
    pub fn meter(&self) -> Meter {
        self.runs().next().map_or(Meter::Probes, |run| run.recording.meter)
    }

    /// The clock of the runs. If `--allow-different` lets them differ it is the wall clock, whose limits
    /// are wider.
    pub fn clock(&self) -> Clock {
        match self.runs().all(|run| run.recording.clock == Clock::Virtual) {
            true => Clock::Virtual,
            false => Clock::Wall,
        }
    }
}

impl<'a> Sides<'a> {
    /// Sorts the runs of both sides into parts; without a baseline there are budgets to judge, and nothing has to be alike.
    ///
    /// # Errors
    /// If a run was interrupted, its load failed or its books do not balance; if one is a copy of another;
    /// if runs are of two meters, or differ in an aspect that is not in `allowed`.
    pub fn new(
        base: &'a [Run],
        candidate: &'a [Run],
        allowed: &[What],
        independent: bool,
    ) -> Result<Self, String> {
        let is_judged_alone = base.is_empty();
        fit(&base.iter().chain(candidate).collect::<Vec<_>>(), !is_judged_alone)?;
        let mut names = [base, candidate].map(part_names);
        let (mut notes, mut parts, mut unlike) = (Vec::new(), Vec::new(), Unlike::new());
        if is_judged_alone {
            names[0] = names[1].clone();
            notes.push("no baseline: only budgets are judged".to_owned());
        }
        for (side, other) in [(Side::Baseline, 1), (Side::Candidate, 0)] {
            let alone = names[side as usize].iter().filter(|name| !names[other].contains(name));
            notes.extend(
                alone.map(|name| format!("{}: only the {side} has runs of it", part_words(name))),
            );
        }
        notes.extend(partly_measured(base, Side::Baseline));
        notes.extend(partly_measured(candidate, Side::Candidate));
        for name in names[0].iter().filter(|name| names[1].contains(name)) {
            let part = Part::of(name.clone(), base, candidate, independent);
            if !is_judged_alone {
                add_unlike(&mut unlike, &part, allowed);
            }
            parts.push(part);
        }
        if !unlike.is_empty() {
            return Err(unlike_words(&unlike));
        }
        if parts.is_empty() && !is_judged_alone {
            let [base, candidate] = names.map(|names| names.iter().map(part_words).join(", "));
            return Err(format!(
                "not comparable: the baseline has runs of {base}, the candidate of {candidate}: measure both with the \
                 same load profiles"
            ));
        }
        Ok(Self { parts, notes })
    }
}

fn part_words(name: &Option<String>) -> String {
    name.as_ref().map_or("no load profile".to_owned(), |name| format!("load profile {name}"))
}

/// Refuses runs that cannot be used, and copies if `each` has to be a measurement of its own.
fn fit(runs: &[&Run], each: bool) -> Result<(), String> {
    let mut unfit = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let Run { name, recording } = run;
        let mut before = runs[..number].iter();
        let original = before.clone().find(|first| each && is_copy(&first.recording, recording));
        let first_of_part = before.find(|first| first.recording.part() == recording.part());
        let other = first_of_part.filter(|first| first.recording.meter != recording.meter);
        let reasons = [
            unusable(recording),
            original.map(|first| format!("is a copy of {}, not a second measurement", first.name)),
            // Instructions and nanoseconds never compare.
            other.map(|first| {
                format!(
                    "its figures are {}, and those of {} are not",
                    recording.meter.unit(),
                    first.name
                )
            }),
        ];
        unfit.extend(reasons.into_iter().flatten().map(|why| format!("{name}: {why}")));
    }
    if unfit.is_empty() {
        return Ok(());
    }
    let unfit = unfit.join("\n  ");
    Err(format!("not comparable: runs that cannot be used:\n  {unfit}\nmeasure these again"))
}

/// Handlers that a daemon shed while these runs were recorded.
fn partly_measured(runs: &[Run], side: Side) -> Option<String> {
    let mut names = BTreeSet::new();
    for Run { recording, .. } in runs {
        let warned = recording.warnings.iter();
        let warned = warned.filter(|it| matches!(it.code.parse(), Ok(Code::PartlyMeasured)));
        names.extend(warned.flat_map(|warning| &warning.handlers));
        let shed = recording.left_out.iter().filter(|left| left.reason == SHED);
        names.extend(shed.map(|left| &left.name));
    }
    (!names.is_empty()).then(|| {
        format!(
            "{side}: not measured throughout for the daemon's budget (`max-overhead`): {}: calls of busy times may be \
             missing, and one that is missing may be there",
            listed(&Vec::from_iter(names))
        )
    })
}

fn recordings<'a>(side: &[&'a Run]) -> Vec<&'a Recording> {
    side.iter().map(|run| &run.recording).collect()
}

/// The parts of a side, in the order in which they first appear.
fn part_names(side: &[Run]) -> Vec<Option<String>> {
    side.iter().map(|run| run.recording.part().map(str::to_owned)).unique().collect()
}

/// Why a run cannot be used.
fn unusable(recording: &Recording) -> Option<String> {
    if recording.interrupted {
        return Some("the run was interrupted".to_owned());
    }
    let failed = recording.loads.iter().find_map(|load| match &load.outcome.status {
        LoadStatus::Failed(failure) => Some(format!("its load failed: {failure}")),
        _ => None,
    });
    failed.or_else(|| {
        let mut handlers = recording.handlers.iter();
        let found = handlers.find(|handler| handler.losses.imbalance(handler.count) != 0)?;
        Some(format!("its books of {} do not balance", found.name))
    })
}

/// Whether a run was given twice, to one side or to both: a copy is not a second measurement.
fn is_copy(a: &Recording, b: &Recording) -> bool {
    a.started == b.started
        && a.place == b.place
        && a.host.boot_id == b.host.boot_id
        && a.handlers == b.handlers
        && a.loads == b.loads
}

/// Runs that differ in one thing, by that and the words up to their names.
type Unlike = BTreeMap<(What, String), Vec<String>>;

/// Adds the differences between the runs of a part.
fn add_unlike(found: &mut Unlike, Part { base, candidate, .. }: &Part<'_>, allowed: &[What]) {
    let first = base.first().zip(candidate.first());
    let mut pairs = Vec::from_iter(first.map(|(base, other)| (*base, *other, Use::Comparison)));
    for side in [base, candidate] {
        pairs.extend(side.iter().skip(1).map(|other| (side[0], *other, Use::Repetition)));
    }
    for (first, other, purpose) in pairs {
        for difference in differences(&first.recording, &other.recording, purpose) {
            if !allowed.contains(&difference.what) {
                found.entry(of(&first.name, difference)).or_default().push(other.name.clone());
            }
        }
    }
    if let Some(difference) = failing_otherwise([&recordings(base), &recordings(candidate)])
        && !allowed.contains(&What::Errors)
    {
        let first = base.first().map_or("", |run| &run.name);
        let others = found.entry(of(&format!("all runs from {first} on"), difference));
        others.or_default().extend(candidate.iter().map(|run| run.name.clone()));
    }
}

/// In what runs differ from the `first`, and the words up to their names.
fn of(first: &str, difference: Difference) -> (What, String) {
    let [was, is] = [&difference.first, &difference.second].map(|value| clean(value));
    (difference.what, format!("{}: {was} in {first}, {is} in", difference.what))
}

/// How runs differ, and the remedy.
fn unlike_words(found: &Unlike) -> String {
    let whats = found.keys().map(|(what, _)| what).dedup().join(",");
    let mut lines = found.iter().map(|((_, words), others)| match others.as_slice() {
        [other, rest @ .., _] => format!("{words} {other} and {} more", rest.len() + 1),
        others => format!("{words} {}", others.join("")),
    });
    format!(
        "not comparable: the runs differ in more than the driver's build:\n  {}\nmeasure both \
         sides alike, or, if the difference does not matter, add --allow-different {whats}",
        lines.join("\n  ")
    )
}
