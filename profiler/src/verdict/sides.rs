//! The runs of both sides, once it is certain that they may be compared.

use std::fmt;

use super::Design;
use crate::load::LoadStatus;
use crate::profile::Profile;
use crate::profile::unlike::{Difference, Use, What, differences};

/// One run, with a name for messages: its file, and its number in there.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// What messages call it.
    pub name: String,
    /// What was measured.
    pub profile: Profile,
}

/// Runs of a baseline and of a candidate, in parts that are compared each for itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Sides {
    /// The parts; one, unless the runs are of several load profiles.
    pub parts: Vec<Part>,
    /// What a reader has to know of the choice of runs.
    pub notes: Vec<String>,
}

/// Runs of one load.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Name of the load profile, where runs have one.
    pub name: Option<String>,
    /// The baseline.
    pub base: Vec<Run>,
    /// The candidate.
    pub candidate: Vec<Run>,
    /// How they lie to each other.
    pub design: Design,
}

/// Why runs may not be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Some cannot be used at all.
    Unfit(Vec<Unfit>),
    /// They differ in more than the driver's build.
    Unlike(Vec<Unlike>),
    /// No part is on both sides.
    NothingInCommon {
        /// Parts of the baseline.
        base: String,
        /// Parts of the candidate.
        candidate: String,
    },
}

/// A run that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// Its name.
    pub run: String,
    /// Why.
    pub reason: String,
}

/// Runs that differ in one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlike {
    /// The run that it is held against.
    pub first: String,
    /// The runs that differ from it in the same way.
    pub others: Vec<String>,
    /// In what.
    pub difference: Difference,
}

impl fmt::Display for Unlike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { what, first, second } = &self.difference;
        let others = match self.others.as_slice() {
            [other] => other.clone(),
            [other, rest @ ..] => format!("{other} and {} more", rest.len()),
            [] => "another".to_owned(),
        };
        write!(f, "{what}: {first} in {}, {second} in {others}", self.first)
    }
}

impl Refusal {
    /// One line for each reason.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        match self {
            Self::Unfit(runs) => {
                runs.iter().map(|run| format!("{}: {}", run.run, run.reason)).collect()
            }
            Self::Unlike(found) => found.iter().map(ToString::to_string).collect(),
            Self::NothingInCommon { base, candidate } => {
                vec![format!("the baseline has runs of {base}, the candidate of {candidate}")]
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = self.reasons().join("\n  ");
        match self {
            Self::Unfit(_) => write!(
                f,
                "not comparable: runs that cannot be used:\n  {reasons}\nmeasure these again"
            ),
            Self::Unlike(found) => {
                let mut whats: Vec<&str> =
                    found.iter().map(|found| found.difference.what.name()).collect();
                whats.dedup();
                write!(
                    f,
                    "not comparable: the runs differ in more than the driver's build:\n  {reasons}\nmeasure \
                     both sides alike, or, if this cannot matter, add --allow-different {}",
                    whats.join(",")
                )
            }
            Self::NothingInCommon { .. } => {
                write!(f, "not comparable: {reasons}: measure both with the same load profiles")
            }
        }
    }
}

impl Sides {
    /// Runs of a candidate alone, which can be held against budgets.
    ///
    /// # Errors
    /// If a run was cut short, its load failed or its account of calls does not add up.
    pub fn of_candidate(candidate: Vec<Run>) -> Result<Self, Refusal> {
        let unfit: Vec<Unfit> = candidate.iter().filter_map(unfit_for).collect();
        if !unfit.is_empty() {
            return Err(Refusal::Unfit(unfit));
        }
        let mut parts = Vec::new();
        for name in part_names(&candidate) {
            let candidate: Vec<Run> =
                candidate.iter().filter(|run| part_name(run) == name).cloned().collect();
            let profiles: Vec<&Profile> = candidate.iter().map(|run| &run.profile).collect();
            let design = Design::of(&[], &profiles, false);
            parts.push(Part { name, base: Vec::new(), candidate, design });
        }
        let notes = vec!["no baseline: only budgets are judged".to_owned()];
        Ok(Self { parts, notes })
    }

    /// Sorts the runs of both sides into parts.
    ///
    /// # Errors
    /// If a run was cut short, its load failed or its account of calls does not add up; if one is a
    /// copy of another; or if runs differ in what is not in `allowed`.
    pub fn new(
        base: Vec<Run>,
        candidate: Vec<Run>,
        allowed: &[What],
        independent: bool,
    ) -> Result<Self, Refusal> {
        let mut unfit: Vec<Unfit> = Vec::new();
        for side in [&base, &candidate] {
            unfit.extend(side.iter().filter_map(unfit_for));
            unfit.extend(copies(side));
        }
        if !unfit.is_empty() {
            return Err(Refusal::Unfit(unfit));
        }
        let (names_of_base, names_of_candidate) = (part_names(&base), part_names(&candidate));
        let mut notes = Vec::new();
        for name in names_of_base.iter().filter(|name| !names_of_candidate.contains(name)) {
            notes.push(format!("{}: only the baseline has runs of it", words(name)));
        }
        for name in names_of_candidate.iter().filter(|name| !names_of_base.contains(name)) {
            notes.push(format!("{}: only the candidate has runs of it", words(name)));
        }
        let common: Vec<Option<String>> = names_of_base
            .iter()
            .filter(|name| names_of_candidate.contains(name))
            .cloned()
            .collect();
        if common.is_empty() {
            let list =
                |names: &[Option<String>]| names.iter().map(words).collect::<Vec<_>>().join(", ");
            return Err(Refusal::NothingInCommon {
                base: list(&names_of_base),
                candidate: list(&names_of_candidate),
            });
        }
        let (mut parts, mut unlike) = (Vec::new(), Vec::new());
        for name in common {
            let of = |side: &[Run]| -> Vec<Run> {
                side.iter().filter(|run| part_name(run) == name).cloned().collect()
            };
            let (base, candidate) = (of(&base), of(&candidate));
            unlike.extend(unlike_runs(&base, &candidate, allowed));
            let profiles =
                |side: &[Run]| side.iter().map(|run| run.profile.clone()).collect::<Vec<_>>();
            let (of_base, of_candidate) = (profiles(&base), profiles(&candidate));
            let design = Design::of(
                &of_base.iter().collect::<Vec<_>>(),
                &of_candidate.iter().collect::<Vec<_>>(),
                independent,
            );
            parts.push(Part { name, base, candidate, design });
        }
        if unlike.is_empty() { Ok(Self { parts, notes }) } else { Err(Refusal::Unlike(unlike)) }
    }
}

fn part_name(run: &Run) -> Option<String> {
    run.profile.place.as_ref().and_then(|place| place.part.clone())
}

/// The parts of a side, in the order in which they first appear.
fn part_names(side: &[Run]) -> Vec<Option<String>> {
    let mut names = Vec::new();
    for run in side {
        let name = part_name(run);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn words(part: &Option<String>) -> String {
    part.as_ref().map_or("no load profile".to_owned(), |name| format!("load profile {name}"))
}

fn unfit_for(run: &Run) -> Option<Unfit> {
    let profile = &run.profile;
    let unbalanced =
        profile.handlers.iter().find(|handler| handler.losses.imbalance(handler.count) != 0);
    let failed = profile.loads.iter().find_map(|load| match &load.outcome.status {
        LoadStatus::Failed(failure) => Some(failure.to_string()),
        _ => None,
    });
    let reason = if profile.interrupted {
        "the run was interrupted".to_owned()
    } else if let Some(failure) = failed {
        format!("its load failed: {failure}")
    } else if let Some(handler) = unbalanced {
        format!("its account of calls of {} does not add up", handler.name)
    } else {
        return None;
    };
    Some(Unfit { run: run.name.clone(), reason })
}

/// Runs that are there twice: a copy is no second measurement.
fn copies(side: &[Run]) -> Vec<Unfit> {
    let is_copy = |a: &Run, b: &Run| {
        a.profile.started == b.profile.started
            && a.profile.place == b.profile.place
            && a.profile.host.boot_id == b.profile.host.boot_id
            && a.profile.handlers == b.profile.handlers
            && a.profile.loads == b.profile.loads
    };
    let mut found = Vec::new();
    for (number, run) in side.iter().enumerate() {
        if let Some(first) = side.iter().take(number).find(|first| is_copy(first, run)) {
            let reason =
                format!("is a copy of {}, and a copy is no second measurement", first.name);
            found.push(Unfit { run: run.name.clone(), reason });
        }
    }
    found
}

/// Each way in which runs differ, told once.
fn unlike_runs(base: &[Run], candidate: &[Run], allowed: &[What]) -> Vec<Unlike> {
    let mut found: Vec<Unlike> = Vec::new();
    let mut hold = |first: &Run, other: &Run, purpose: Use| {
        for difference in differences(&first.profile, &other.profile, purpose) {
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
    found
}
