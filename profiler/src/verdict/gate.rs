//! The gate: judges runs by a rule.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use super::change::{CONFIDENCE, average, load_of, lost_share};
use super::judge::{self, Terms};
use super::placement::{FIRST_PLACEMENTS, MOST_PLACEMENTS};
use super::{
    Budget, ChangeRecord, Conclusion, Evidence, Gate, ITERATIONS_AN_INSTRUCTION, Limit, Line,
    Measured, Note, Part, Refusal, Rule, Run, Sides, Statistic, Tally, TooFewRuns, Verdict,
    changes, operation_of,
};
use crate::recording::unlike::defaults;
use crate::recording::{Clock, DriverCost, Meter};
use crate::stats;

/// Calls of a run more than in the baseline's that are no change: a run may end before what its last operations put off.
const CALLS_FLOOR: f64 = 4.0;

/// Instructions a call that order others, so many more or fewer of which are said.
const ORDERING: f64 = 0.05;

/// A figure that is still to be judged.
struct Pending {
    record: ChangeRecord,
    terms: Terms,
}

/// Judges the candidate against the baseline and against the rule's budgets.
pub fn gate<'a>(sides: Result<Sides<'a>, Refusal>, rule: &Rule) -> Gate<'a> {
    let mut gate = Gate {
        conclusion: Conclusion::Judged(Tally::default()),
        alpha: rule.alpha,
        comparisons: 0,
        parts: Vec::new(),
        notes: Vec::new(),
        defaults: Vec::new(),
        lines: Vec::new(),
    };
    let sides = match sides {
        Ok(sides) => sides,
        Err(refusal) => return Gate { conclusion: Conclusion::NotComparable(refusal), ..gate },
    };
    gate.notes = notes(&sides, rule);
    gate.parts = sides.parts;
    gate.defaults = changed_defaults(&gate.parts);
    let mut pending = Vec::new();
    for part in gate.parts.iter().filter(|part| !part.base.is_empty()) {
        for record in changes(part) {
            sort(record, part, rule, &mut pending, &mut gate.lines);
        }
    }
    let (counted, pending): (Vec<_>, Vec<_>) = pending.into_iter().partition(Pending::is_counted);
    gate.comparisons = pending.len();
    if let Some(found) = too_few_runs(&gate.parts, &pending, rule) {
        return Gate { conclusion: Conclusion::TooFewRuns(found), ..gate };
    }
    gate.lines.extend(counted.into_iter().map(Pending::judged));
    gate.lines.extend(judged(pending));
    for budget in &rule.budgets {
        gate.lines.extend(budget_lines(budget, &gate.parts, rule));
    }
    // Stable: within a kind, in the order of the handlers.
    gate.lines.sort_by_key(|line| match line.verdict {
        Verdict::Fail => 0,
        Verdict::Vanished | Verdict::Inconclusive => 1,
        Verdict::Insufficient => 2,
        Verdict::Pass | Verdict::New => 3,
    });
    gate.conclusion = Conclusion::Judged(tally(&gate.lines, rule));
    gate
}

/// A figure that differs by less than this share of the largest change that passes needs no further placements.
const FAR_WITHIN: f64 = 0.1;

/// Nor does one that is farther from the limit than placements move it, in instructions. Of Elkeid's driver, 35 loads in up to nine
/// placements, a handler's figure moves by at most 2, and the mean of an operation of `exit` or `setsid` by up to 10.
const MOVED: f64 = 4.0;
const MOVED_IF_OPERATION: f64 = 16.0;

/// The same of tails of operations, which few operations decide: what makes these dearer is beyond the limit in each placement.
const FAR_WITHIN_IF_TAIL: f64 = 0.5;

/// The parts that need further placements: those in which a judged figure comes near its limit, until there are
/// [`FIRST_PLACEMENTS`], and those whose placements disagree about a limit or a budget, until there are [`MOST_PLACEMENTS`]. Only for counted calls.
///
/// An operation's tail has what the kernel does now and then, so that placements often disagree: if it passes, that is all. An operation
/// whose mean fails needs none for its other figures.
pub fn open_parts(sides: &Sides<'_>, rule: &Rule) -> BTreeSet<Option<String>> {
    let is_open = |part: &Part<'_>| {
        let mut pending = Vec::new();
        for record in changes(part) {
            sort(record, part, rule, &mut pending, &mut Vec::new());
        }
        let failed = failed_operations(&pending);
        let mut figures = pending.iter().filter(|figure| figure.is_counted());
        let disagree = || {
            let budgets = rule.budgets.iter();
            budgets.flat_map(|budget| budget_lines(budget, slice::from_ref(part), rule)).any(|it| {
                matches!(it.evidence, Evidence::Spent { counted: true, bounds: [low, high], below, .. }
                    if low < below && high >= below)
            })
        };
        match part.design.placements() {
            0..FIRST_PLACEMENTS => !figures.all(|figure| figure.is_far_within()) || disagree(),
            FIRST_PLACEMENTS..MOST_PLACEMENTS => {
                figures.any(|it| it.is_astride() && !failed.contains(&it.operation())) || disagree()
            }
            _ => false,
        }
    };
    sides.parts.iter().filter(|part| is_open(part)).map(|part| part.name.clone()).collect()
}

/// Operations whose mean fails in each placement, with their parts.
fn failed_operations(pending: &[Pending]) -> BTreeSet<(Option<String>, String)> {
    let fails = |figure: &&Pending| {
        let most = figure.terms.most(&figure.record);
        figure.record.statistic == Statistic::Avg
            && load_of(&figure.record.handler).is_some()
            && figure.is_counted()
            && !figure.is_astride()
            && figure.record.change.is_some_and(|change| change > most)
    };
    pending.iter().filter(fails).map(Pending::operation).collect()
}

impl Pending {
    /// What it is of, with its part.
    fn operation(&self) -> (Option<String>, String) {
        (self.record.part.clone(), self.record.handler.clone())
    }

    /// Whether placements are compared.
    fn is_counted(&self) -> bool {
        self.record.placements.is_some()
    }

    /// The lowest and the highest difference of a placement.
    fn ends(&self) -> [f64; 2] {
        self.record.change_bounds.unwrap_or_default()
    }

    /// Whether the largest difference is far from the limit.
    fn is_far_within(&self) -> bool {
        let most = self.terms.most(&self.record);
        if self.record.is_open(most) {
            return false;
        }
        let far = match self.record.statistic {
            Statistic::Tail => most * FAR_WITHIN_IF_TAIL,
            Statistic::Count | Statistic::Repeated | Statistic::Elsewhere => 0.0,
            _ if load_of(&self.record.handler).is_some() => most - MOVED_IF_OPERATION,
            _ => most - MOVED,
        };
        self.ends().iter().all(|end| end.abs() <= far.max(most * FAR_WITHIN))
    }

    /// Whether further placements may change the verdict: some are beyond the limit and others are not, or what is outside of the
    /// driver's functions decides and is not clear.
    fn is_astride(&self) -> bool {
        let ([lowest, highest], most) = (self.ends(), self.terms.most(&self.record));
        let passes = self.record.change.is_some_and(|change| change <= most);
        let is_done = self.record.statistic == Statistic::Tail && passes;
        self.record.is_open(most) || lowest <= most && highest > most && !is_done
    }

    /// The line on a counted figure.
    fn judged(self) -> Line {
        let evidence = judge::judge(&self.record, &self.terms, 1.0, 1.0);
        limited(self.record, &self.terms, evidence)
    }
}

/// Decides a figure at once, or leaves it to be judged.
fn sort(
    record: ChangeRecord,
    part: &Part<'_>,
    rule: &Rule,
    pending: &mut Vec<Pending>,
    lines: &mut Vec<Line>,
) {
    if let Some(evidence) = presence(&record) {
        if record.statistic == Statistic::Count {
            // One line for the whole handler.
            lines.push(Line { statistic: None, ..line(record, evidence) });
        }
        return;
    }
    let measured = Measured {
        meter: part.meter(),
        clock: part.clock(),
        in_turns: part.design.is_interleaved(),
    };
    let floor = rule.floor(&record.handler, measured);
    let (share, floor) = match rule.limit(&record.handler, record.statistic, measured) {
        Limit::Off => return,
        Limit::Share(share) => match record.statistic {
            Statistic::Count => (Some(share), CALLS_FLOOR),
            Statistic::Repeated => {
                let instructions = average(part, &record).unwrap_or(0.0) * share;
                (None, instructions.max(floor) * ITERATIONS_AN_INSTRUCTION)
            }
            _ => (Some(share), floor),
        },
        Limit::By(amount) if amount.meter == measured.meter => match record.statistic {
            Statistic::Repeated => (None, amount.value * ITERATIONS_AN_INSTRUCTION),
            _ => (None, amount.value),
        },
        Limit::By(_) => {
            lines.push(line(record, Evidence::OtherUnit));
            return;
        }
    };
    let terms = Terms { share, floor, max_loss: rule.max_loss, alpha: rule.alpha };
    match judge::insufficient(&record) {
        Some(evidence) => lines.push(limited(record, &terms, evidence)),
        None => pending.push(Pending { record, terms }),
    }
}

/// Evidence for a handler that not both sides called.
fn presence(record: &ChangeRecord) -> Option<Evidence> {
    match (record.base_calls.total > 0, record.candidate_calls.total > 0) {
        (true, true) => None,
        (true, false) => Some(Evidence::Gone),
        (false, true) => Some(Evidence::New),
        (false, false) => Some(Evidence::NeverCalled),
    }
}

/// A line on a change.
fn line(record: ChangeRecord, evidence: Evidence) -> Line {
    let new = Line::new(record.part.clone(), record.handler.clone(), evidence);
    let statistic = Some(record.statistic);
    Line { statistic, meter: record.meter(), change: Some(record), ..new }
}

/// A line on a change that has limits.
fn limited(record: ChangeRecord, terms: &Terms, evidence: Evidence) -> Line {
    let floor = Some(terms.floor(&record));
    let (floor_ns, floor_instructions) = match record.meter() {
        Meter::Probes => (floor, None),
        Meter::Exact => (None, floor.filter(|_| record.statistic.is_cost())),
    };
    Line {
        limit_percent: terms.share.map(|share| share * 100.0),
        floor_ns,
        floor_instructions,
        ..line(record, evidence)
    }
}

/// The design for which no comparison can fail, if any.
fn too_few_runs(parts: &[Part<'_>], pending: &[Pending], rule: &Rule) -> Option<TooFewRuns> {
    let comparisons = pending.len().max(1);
    let level = rule.alpha / comparisons as f64;
    // Both are quotients: allow for rounding.
    let hopeless = |part: &Part<'_>| part.design.smallest_p() > level * (1.0 + 1e-9);
    let is_compared = |part: &Part<'_>| {
        let is_its = |figure: &Pending| figure.record.part == part.name;
        part.meter() == Meter::Probes
            && !part.base.is_empty()
            && (pending.is_empty() || pending.iter().any(is_its))
    };
    let part = parts.iter().find(|part| is_compared(part) && hopeless(part))?;
    Some(TooFewRuns {
        part: part.name.clone(),
        design: part.design.clone(),
        comparisons,
        level,
        enough: part.design.enough(level),
    })
}

fn judged(pending: Vec<Pending>) -> impl Iterator<Item = Line> {
    let adjusted = |of: fn(&ChangeRecord) -> Option<f64>| {
        let p_values: Vec<f64> = pending.iter().map(|p| of(&p.record).unwrap_or(1.0)).collect();
        stats::adjust(&p_values)
    };
    let slower = adjusted(|record| record.p_slower);
    let faster = adjusted(|record| record.p_faster);
    pending.into_iter().zip(slower.into_iter().zip(faster)).map(|(pending, (slower, faster))| {
        let Pending { record, terms, .. } = pending;
        let evidence = judge::judge(&record, &terms, slower, faster);
        Line { p_adjusted: Some(slower), ..limited(record, &terms, evidence) }
    })
}

/// Lines of a budget: one per handler of the candidate that it matches.
fn budget_lines(budget: &Budget, parts: &[Part<'_>], rule: &Rule) -> Vec<Line> {
    let line = |part: Option<String>, handler: &str, evidence: Evidence| Line {
        statistic: Some(budget.statistic),
        budget: Some(budget.text.clone()),
        meter: budget.below.meter,
        ..Line::new(part, handler.to_owned(), evidence)
    };
    let mut lines = Vec::new();
    for part in parts {
        let mut seen: Vec<(Option<&str>, &str)> = Vec::new();
        for handler in part.candidate.iter().flat_map(|run| &run.recording.handlers) {
            let key = (handler.module.as_deref(), handler.name.as_str());
            if budget.pattern.matches(&handler.name) && !seen.contains(&key) {
                seen.push(key);
                let evidence = match part.meter() == budget.below.meter {
                    true => spent(budget, &part.candidate, key, rule),
                    false => Evidence::OtherUnit,
                };
                lines.push(line(part.name.clone(), &handler.name, evidence));
            }
        }
        for load in part.operations() {
            let name = operation_of(load);
            if budget.pattern.matches(&name) {
                let costs = part.candidate.iter().filter_map(|run| run.cost(load));
                let values: Vec<f64> = costs.map(DriverCost::added_ns).collect();
                let evidence = match budget.below.meter {
                    Meter::Exact => within(budget, &values),
                    Meter::Probes => Evidence::OtherUnit,
                };
                lines.push(line(part.name.clone(), &name, evidence));
            }
        }
    }
    if lines.is_empty() {
        lines.push(line(None, budget.pattern.as_str(), Evidence::NoMatch));
    }
    lines
}

/// Judges a handler by a budget.
fn spent(
    budget: &Budget,
    runs: &[&Run],
    (module, name): (Option<&str>, &str),
    rule: &Rule,
) -> Evidence {
    let handlers: Vec<_> = runs.iter().map(|run| run.handler(module, name)).collect();
    let fewest = handlers.iter().map(|found| found.map_or(0, |handler| handler.count)).min();
    let (needed, fewest) = (budget.statistic.calls_needed(budget.below.meter), fewest.unwrap_or(0));
    if fewest < needed {
        return Evidence::FewCalls { needed, fewest, side: None };
    }
    let handlers = || handlers.iter().flatten();
    let values: Vec<f64> =
        handlers().filter_map(|handler| Some(budget.statistic.of(handler)?.value)).collect();
    let share = handlers().map(|handler| lost_share(handler)).fold(0.0, f64::max);
    match within(budget, &values) {
        Evidence::Spent { value, .. } if share > rule.max_loss => {
            Evidence::SpentLost { value, share, allowed: rule.max_loss }
        }
        evidence => evidence,
    }
}

/// Judges the values of runs by a budget.
fn within(budget: &Budget, values: &[f64]) -> Evidence {
    let counted = budget.below.meter == Meter::Exact;
    let found = match counted {
        true => stats::median(values).zip(stats::ends(values)),
        false => stats::level(values, CONFIDENCE).map(|(value, bounds)| {
            (value, bounds.map_or([value; 2], |bounds| [bounds.lower, bounds.upper]))
        }),
    };
    let Some((value, bounds)) = found else { return Evidence::NoCall };
    Evidence::Spent { value, bounds, below: budget.below.value, counted, runs: values.len() }
}

/// Module parameters whose defaults differ, each once.
fn changed_defaults(parts: &[Part<'_>]) -> Vec<String> {
    let of = |part: &Part<'_>| {
        let (base, candidate) = (part.base.first()?, part.candidate.first()?);
        Some(defaults(&base.recording, &candidate.recording))
    };
    let words: BTreeSet<String> = parts.iter().filter_map(of).flatten().collect();
    words.into_iter().collect()
}

fn notes(sides: &Sides<'_>, rule: &Rule) -> Vec<Note> {
    let mut notes = sides.notes.clone();
    for part in &sides.parts {
        let base = part.base.first().map_or(Vec::new(), |run| run.builds().collect());
        let candidate = part.candidate.first().map_or(Vec::new(), |run| run.builds().collect());
        if !base.is_empty() && base == candidate {
            notes.push(Note::SameBuild(part.name.clone()));
        }
        let floors = rule.handlers.iter().filter_map(|rule| rule.floor);
        let others =
            rule.floor.into_iter().chain(floors).filter(|floor| floor.meter != part.meter());
        notes.extend(others.map(|floor| Note::OtherFloor(floor, part.name.clone())));
        if part.clock() == Clock::Wall && !part.design.is_interleaved() {
            notes.push(Note::NotInTurns(part.name.clone()));
        }
    }
    notes.extend(ordering(sides));
    let names = || {
        let runs = sides.parts.iter().flat_map(Part::runs);
        runs.flat_map(|run| &run.recording.handlers).map(|handler| handler.name.as_str())
    };
    let operations: Vec<String> =
        sides.parts.iter().flat_map(Part::operations).map(operation_of).collect();
    for handler in &rule.handlers {
        let mut names = names().chain(operations.iter().map(String::as_str));
        if !names.any(|name| handler.pattern.matches(name)) {
            notes.push(Note::Unmatched(handler.pattern.to_string()));
        }
    }
    notes
}

/// Handlers whose calls have more or fewer instructions that order others, each once, by the load under which it is most.
fn ordering(sides: &Sides<'_>) -> Vec<Note> {
    let of = |runs: &[&Run]| {
        // `None` where one run did not count them.
        let mut sums: BTreeMap<String, Option<(u64, u64)>> = BTreeMap::new();
        for handler in runs.iter().flat_map(|run| &run.recording.handlers) {
            let sum = sums.entry(handler.name.clone()).or_insert(Some((0, 0)));
            *sum = sum.zip(handler.ordering).map(|((ordering, calls), more)| {
                (ordering.saturating_add(more), calls.saturating_add(handler.count))
            });
        }
        sums
    };
    let mut most: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    for part in &sides.parts {
        let candidate = of(&part.candidate);
        for (name, base) in of(&part.base) {
            let both = [Some(&base), candidate.get(&name)];
            let [Some(base), Some(candidate)] =
                both.map(|sums| stats::mean((*sums?)?.0, (*sums?)?.1))
            else {
                continue;
            };
            let known = most.get(&name).map_or(0.0, |[base, candidate]| (candidate - base).abs());
            if (candidate - base).abs() >= ORDERING.max(known) {
                most.insert(name, [base, candidate]);
            }
        }
    }
    most.into_iter().map(|(handler, both)| Note::Ordering(handler, both)).collect()
}

fn tally(lines: &[Line], rule: &Rule) -> Tally {
    let count = |verdict: Verdict| lines.iter().filter(|line| line.verdict == verdict).count();
    let vanished = count(Verdict::Vanished);
    let not_allowed = if rule.allow_vanished { 0 } else { vanished };
    Tally {
        failed: count(Verdict::Fail),
        undecided: count(Verdict::Inconclusive) + count(Verdict::Insufficient) + not_allowed,
        passed: count(Verdict::Pass),
        improved: lines.iter().filter(|line| line.improved).count(),
        new: count(Verdict::New),
        vanished,
    }
}
