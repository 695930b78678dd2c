//! The runs of both sides, checked to be comparable.

use std::collections::BTreeSet;

use super::{Design, Note, Side};
use crate::load::{BuiltinKind, LoadFailure, LoadStatus};
use crate::recording::unlike::{Difference, Use, What, differences, failing_otherwise};
use crate::recording::warning::{Code, SHED};
use crate::recording::{Clock, DriverCost, HandlerRecording, Meter, Recording};

/// A run, with a name for messages: its file, and its number in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its name in messages.
    pub name: String,
    /// The recording.
    pub recording: Recording,
}

/// Runs of a baseline and of a candidate, in parts that are compared separately.
#[derive(Debug, Clone, PartialEq)]
pub struct Sides<'a> {
    /// The parts, one per load profile.
    pub parts: Vec<Part<'a>>,
    /// Notes on the choice of runs.
    pub notes: Vec<Note>,
}

/// Runs of one load profile.
#[derive(Debug, Clone, PartialEq)]
pub struct Part<'a> {
    /// Name of the load profile, if runs have one.
    pub name: Option<String>,
    /// The baseline.
    pub base: Vec<&'a Run>,
    /// The candidate.
    pub candidate: Vec<&'a Run>,
    /// Which runs share boots.
    pub design: Design,
}

/// Why runs are not comparable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Runs that cannot be used, by name, with the reason.
    Unfit(Vec<(String, Unfit)>),
    /// They differ in more than the driver's build.
    Unlike(Vec<Unlike>),
    /// No load profile is on both sides.
    NothingInCommon {
        /// Parts of the baseline.
        base: Vec<Option<String>>,
        /// Parts of the candidate.
        candidate: Vec<Option<String>>,
    },
}

/// Why a run cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// It was interrupted.
    Interrupted,
    /// Its load failed.
    LoadFailed(LoadFailure),
    /// The books of this handler do not balance.
    Unbalanced(String),
    /// It is a copy of this run.
    CopyOf(String),
    /// Its figures are of this meter, and those of the run that it names are of another.
    OtherMeter(Meter, String),
}

/// Runs that differ in one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlike {
    /// The run that the others are compared with.
    pub first: String,
    /// The runs that differ from it in that way.
    pub others: Vec<String>,
    /// The difference.
    pub difference: Difference,
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

impl Part<'_> {
    /// The release of the kernel that it ran on, if that is known.
    pub fn kernel(&self) -> Option<&str> {
        self.base.first()?.recording.host.kernel_release.as_deref()
    }

    /// The runs of both sides.
    pub(super) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.base.iter().chain(&self.candidate).copied()
    }

    /// The loads of which every run of both sides says what the driver costs an operation.
    pub(super) fn operations(&self) -> Vec<BuiltinKind> {
        let first = self.runs().next().into_iter().flat_map(|run| &run.recording.driver_costs);
        let loads = first.map(|cost| cost.load);
        loads.filter(|load| self.runs().all(|run| run.cost(*load).is_some())).collect()
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
    /// Runs of a candidate only, to judge by budgets.
    ///
    /// # Errors
    /// If a run was interrupted, its load failed, its books do not balance, or runs are of two meters.
    pub fn of_candidate(candidate: &'a [Run]) -> Result<Self, Refusal> {
        fit(candidate.iter(), false)?;
        let part = |name| {
            let candidate = of_part(candidate, &name);
            let design = Design::of(&[], &recordings(&candidate), false);
            Part { name, base: Vec::new(), candidate, design }
        };
        let parts = part_names(candidate).into_iter().map(part).collect();
        let notes = [Note::OnlyBudgets].into_iter();
        let notes = notes.chain(partly_measured(candidate, Side::Candidate)).collect();
        Ok(Self { parts, notes })
    }

    /// Sorts the runs of both sides into parts.
    ///
    /// # Errors
    /// If a run was interrupted, its load failed or its books do not balance; if one is a copy of another;
    /// if runs are of two meters, or differ in an aspect that is not in `allowed`.
    pub fn new(
        base: &'a [Run],
        candidate: &'a [Run],
        allowed: &[What],
        independent: bool,
    ) -> Result<Self, Refusal> {
        fit(base.iter().chain(candidate), true)?;
        let (of_base, of_candidate) = (part_names(base), part_names(candidate));
        let (common, base_alone): (Vec<_>, Vec<_>) =
            of_base.iter().cloned().partition(|name| of_candidate.contains(name));
        if common.is_empty() {
            return Err(Refusal::NothingInCommon { base: of_base, candidate: of_candidate });
        }
        let candidate_alone = of_candidate.into_iter().filter(|name| !common.contains(name));
        let mut notes: Vec<Note> =
            base_alone.into_iter().map(|name| Note::OnlyOn(Side::Baseline, name)).collect();
        notes.extend(candidate_alone.map(|name| Note::OnlyOn(Side::Candidate, name)));
        notes.extend(partly_measured(base, Side::Baseline));
        notes.extend(partly_measured(candidate, Side::Candidate));
        let (mut parts, mut unlike) = (Vec::new(), Vec::new());
        for name in common {
            let (base, candidate) = (of_part(base, &name), of_part(candidate, &name));
            unlike.extend(unlike_runs(&base, &candidate, allowed));
            let design = Design::of(&recordings(&base), &recordings(&candidate), independent);
            parts.push(Part { name, base, candidate, design });
        }
        if unlike.is_empty() { Ok(Self { parts, notes }) } else { Err(Refusal::Unlike(unlike)) }
    }
}

/// Refuses runs that cannot be used, and copies if each has to be a measurement of its own.
fn fit<'a>(runs: impl Iterator<Item = &'a Run> + Clone, is_each: bool) -> Result<(), Refusal> {
    let mut unfit: Vec<_> = runs.clone().filter_map(unfit_for).collect();
    unfit.extend(copies(runs.clone()).filter(|_| is_each));
    unfit.extend(other_meters(runs));
    if unfit.is_empty() { Ok(()) } else { Err(Refusal::Unfit(unfit)) }
}

/// Handlers that a daemon shed while these runs were recorded.
fn partly_measured(runs: &[Run], side: Side) -> Option<Note> {
    let mut names = BTreeSet::new();
    for Run { recording, .. } in runs {
        let warned = recording.warnings.iter();
        let warned = warned.filter(|it| matches!(it.code.parse(), Ok(Code::PartlyMeasured)));
        names.extend(warned.flat_map(|warning| &warning.handlers).cloned());
        let shed = recording.left_out.iter().filter(|left| left.reason == SHED);
        names.extend(shed.map(|left| left.name.clone()));
    }
    (!names.is_empty()).then(|| Note::PartlyMeasured(side, Vec::from_iter(names)))
}

fn of_part<'a>(side: &'a [Run], name: &Option<String>) -> Vec<&'a Run> {
    side.iter().filter(|run| run.recording.part() == name.as_deref()).collect()
}

fn recordings<'a>(side: &[&'a Run]) -> Vec<&'a Recording> {
    side.iter().map(|run| &run.recording).collect()
}

/// The parts of a side, in the order in which they first appear.
fn part_names(side: &[Run]) -> Vec<Option<String>> {
    let mut names = Vec::new();
    for run in side {
        let name = run.recording.part().map(str::to_owned);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn unfit_for(run: &Run) -> Option<(String, Unfit)> {
    let recording = &run.recording;
    let failed = recording.loads.iter().find_map(|load| match &load.outcome.status {
        LoadStatus::Failed(failure) => Some(Unfit::LoadFailed(failure.clone())),
        _ => None,
    });
    let unbalanced = || {
        let mut handlers = recording.handlers.iter();
        let found = handlers.find(|handler| handler.losses.imbalance(handler.count) != 0)?;
        Some(Unfit::Unbalanced(found.name.clone()))
    };
    let reason = match recording.interrupted {
        true => Some(Unfit::Interrupted),
        false => failed.or_else(unbalanced),
    };
    Some((run.name.clone(), reason?))
}

/// Runs that are given twice, to one side or to both: a copy is not a second measurement.
fn copies<'a>(
    runs: impl Iterator<Item = &'a Run> + Clone,
) -> impl Iterator<Item = (String, Unfit)> {
    let is_copy = |a: &Run, b: &Run| {
        a.recording.started == b.recording.started
            && a.recording.place == b.recording.place
            && a.recording.host.boot_id == b.recording.host.boot_id
            && a.recording.handlers == b.recording.handlers
            && a.recording.loads == b.recording.loads
    };
    runs.clone().enumerate().filter_map(move |(number, run)| {
        let first = runs.clone().take(number).find(|first| is_copy(first, run))?;
        Some((run.name.clone(), Unfit::CopyOf(first.name.clone())))
    })
}

/// Runs of another meter than the first of their part: instructions and nanoseconds never compare.
fn other_meters<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Vec<(String, Unfit)> {
    let mut firsts: Vec<&Run> = Vec::new();
    let mut found = Vec::new();
    for run in runs {
        match firsts.iter().find(|first| first.recording.part() == run.recording.part()) {
            Some(first) if first.recording.meter != run.recording.meter => {
                let unfit = Unfit::OtherMeter(run.recording.meter, first.name.clone());
                found.push((run.name.clone(), unfit));
            }
            Some(_) => {}
            None => firsts.push(run),
        }
    }
    found
}

/// The differences between runs, each once.
fn unlike_runs(base: &[&Run], candidate: &[&Run], allowed: &[What]) -> Vec<Unlike> {
    let mut found: Vec<Unlike> = Vec::new();
    let mut hold = |first: &Run, other: &Run, purpose: Use| {
        for difference in differences(&first.recording, &other.recording, purpose) {
            if allowed.contains(&difference.what) {
                continue;
            }
            let same = |unlike: &&mut Unlike| {
                unlike.first == first.name && unlike.difference == difference
            };
            match found.iter_mut().find(same) {
                Some(unlike) => unlike.others.push(other.name.clone()),
                None => found.push(Unlike {
                    first: first.name.clone(),
                    others: vec![other.name.clone()],
                    difference,
                }),
            }
        }
    };
    if let (Some(base), Some(candidate)) = (base.first(), candidate.first()) {
        hold(base, candidate, Use::Comparison);
    }
    for side in [base, candidate] {
        if let [first, others @ ..] = side {
            others.iter().for_each(|other| hold(first, other, Use::Repetition));
        }
    }
    // Which run has them may be a matter of chance.
    let is_known = found.iter().any(|unlike| unlike.difference.what == What::Errors);
    if let (Some(first), false) = (base.first(), is_known || allowed.contains(&What::Errors)) {
        let difference = failing_otherwise(&recordings(base), &recordings(candidate));
        let others = candidate.iter().map(|run| run.name.clone()).collect();
        let first = format!("all runs from {} on", first.name);
        found.extend(difference.map(|difference| Unlike { first, others, difference }));
    }
    found
}
