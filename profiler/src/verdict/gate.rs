//! The gate: judges runs by a rule.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::slice;

use super::change::{CONFIDENCE, load_of, lost_share};
use super::judge::{self, Terms};
use super::placement::{FIRST_PLACEMENTS, MOST_PLACEMENTS};
use super::{
    Budget, ChangeRecord, Conclusion, Evidence, Gate, HandlerRule, ITERATIONS_AN_INSTRUCTION,
    Limit, Line, Measured, Part, Rule, Run, Sides, Statistic, Tally, Verdict, changes,
    operation_of,
};
use crate::recording::unlike::defaults;
use crate::recording::{Clock, DriverCost, Meter};
use crate::stats;

/// A run may have this many calls more than the baseline's: it may end before the deferred work of its last operations.
const CALLS_FLOOR: f64 = 4.0;

/// Smallest difference in ordering instructions (atomic, fences, serialising) per call that is reported.
const ORDERING: f64 = 0.05;

/// A figure that is still to be judged.
struct Pending {
    record: ChangeRecord,
    terms: Terms,
}

/// Judges the candidate against the baseline and against the rule's budgets.
pub fn gate<'a>(sides: Result<Sides<'a>, String>, rule: &Rule) -> Gate<'a> {
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
        Err(why) => return Gate { conclusion: Conclusion::NotComparable(why), ..gate },
    };
    gate.notes = notes(&sides, rule);
    gate.parts = sides.parts;
    gate.defaults = changed_defaults(&gate.parts);
    let mut pending = Vec::new();
    for part in gate.parts.iter().filter(|part| !part.base.is_empty()) {
        let (lines, of_part) = sorted(part, rule);
        gate.lines.extend(lines);
        pending.extend(of_part);
    }
    let (counted, sampled): (Vec<_>, Vec<_>) = pending.into_iter().partition(Pending::is_counted);
    gate.comparisons = sampled.len();
    if let Some((part, level)) = too_few_runs(&gate.parts, &sampled, rule) {
        return Gate { conclusion: Conclusion::TooFewRuns { part, level }, ..gate };
    }
    gate.lines.extend(counted.into_iter().map(|figure| figure.judged(1.0, 1.0)));
    gate.lines.extend(judged(sampled));
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
/// The tail of an operation contains occasional work of the kernel, so its placements often disagree: it is not measured again once it
/// passes. Nor are the other figures of an operation whose mean fails.
pub fn open_parts(sides: &Sides<'_>, rule: &Rule) -> BTreeSet<Option<String>> {
    let is_open = |part: &&Part<'_>| {
        let (_, mut figures) = sorted(part, rule);
        figures.retain(Pending::is_counted);
        let failed: BTreeSet<&str> = figures.iter().filter_map(Pending::failed_operation).collect();
        let disagree = || {
            let budgets = rule.budgets.iter();
            budgets.flat_map(|budget| budget_lines(budget, slice::from_ref(*part), rule)).any(|it| {
                matches!(it.evidence, Evidence::Spent { counted: true, bounds: [low, high], below, .. }
                    if low < below && high >= below)
            })
        };
        match part.design.placements() {
            0..FIRST_PLACEMENTS => !figures.iter().all(Pending::is_far_within) || disagree(),
            FIRST_PLACEMENTS..MOST_PLACEMENTS => {
                let is_open =
                    |it: &Pending| it.is_astride() && !failed.contains(&*it.record.handler);
                figures.iter().any(is_open) || disagree()
            }
            _ => false,
        }
    };
    sides.parts.iter().filter(is_open).map(|part| part.name.clone()).collect()
}

impl Pending {
    /// Whether placements are compared.
    fn is_counted(&self) -> bool {
        self.record.placements.is_some()
    }

    /// The operation whose mean this is, if it fails in each placement.
    fn failed_operation(&self) -> Option<&str> {
        let is_mean = self.record.statistic == Statistic::Avg;
        load_of(&self.record.handler)
            .filter(|_| is_mean && !self.is_astride() && !self.passes())?;
        Some(&self.record.handler)
    }

    fn most(&self) -> f64 {
        self.terms.most(&self.record)
    }

    fn passes(&self) -> bool {
        self.record.change.is_none_or(|change| change <= self.most())
    }

    /// The lowest and the highest difference of a placement.
    fn ends(&self) -> [f64; 2] {
        self.record.change_bounds.unwrap_or_default()
    }

    /// Whether the largest difference is far from the limit.
    fn is_far_within(&self) -> bool {
        let most = self.most();
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
        let ([lowest, highest], most) = (self.ends(), self.most());
        let is_done = self.record.statistic == Statistic::Tail && self.passes();
        self.record.is_open(most) || lowest <= most && highest > most && !is_done
    }

    /// Judges it by its adjusted p-values.
    fn judged(self, slower: f64, faster: f64) -> Line {
        let evidence = judge::judge(&self.record, &self.terms, slower, faster);
        line(self.record, Some(&self.terms), evidence)
    }
}

/// The figures of a part: lines on those that cannot be judged, and those that are still to be.
fn sorted(part: &Part<'_>, rule: &Rule) -> (Vec<Line>, Vec<Pending>) {
    let measured =
        Measured { meter: part.meter(), clock: part.clock(), in_turns: part.design.in_turns };
    let (mut lines, mut pending) = (Vec::new(), Vec::new());
    // The baseline's, which comes before what is judged by a share of it.
    let mut average = None;
    for record in changes(part) {
        if record.statistic == Statistic::Avg {
            average = record.base;
        }
        let presence = match (record.base_calls.total > 0, record.candidate_calls.total > 0) {
            (true, true) => None,
            (true, false) => Some(Evidence::Gone),
            (false, true) => Some(Evidence::New),
            (false, false) => Some(Evidence::NeverCalled),
        };
        if let Some(evidence) = presence {
            if record.statistic == Statistic::Count {
                // One line for the whole handler.
                lines.push(Line { statistic: None, ..line(record, None, evidence) });
            }
            continue;
        }
        let limit = rule.limit(&record.handler, record.statistic, measured);
        let floor = rule.floor(&record.handler, measured);
        let (share, floor) = match (limit, record.statistic) {
            (Limit::Off, _) => continue,
            (Limit::By(amount), _) if amount.meter != measured.meter => {
                lines.push(line(record, None, Evidence::OtherUnit));
                continue;
            }
            (Limit::By(amount), Statistic::Repeated) => {
                (None, amount.value * ITERATIONS_AN_INSTRUCTION)
            }
            (Limit::By(amount), _) => (None, amount.value),
            (Limit::Share(share), Statistic::Count) => (Some(share), CALLS_FLOOR),
            (Limit::Share(share), Statistic::Repeated) => {
                let instructions = average.unwrap_or(0.0) * share;
                (None, instructions.max(floor) * ITERATIONS_AN_INSTRUCTION)
            }
            (Limit::Share(share), _) => (Some(share), floor),
        };
        let terms = Terms { share, floor, max_loss: rule.max_loss, alpha: rule.alpha };
        match judge::insufficient(&record) {
            Some(evidence) => lines.push(line(record, Some(&terms), evidence)),
            None => pending.push(Pending { record, terms }),
        }
    }
    (lines, pending)
}

/// A line on a change, with its limits.
fn line(record: ChangeRecord, terms: Option<&Terms>, evidence: Evidence) -> Line {
    let floor = terms.map(|terms| terms.floor(&record));
    let (floor_ns, floor_instructions) = match record.meter() {
        Meter::Probes => (floor, None),
        Meter::Exact => (None, floor.filter(|_| record.statistic.is_cost())),
    };
    Line {
        statistic: Some(record.statistic),
        meter: record.meter(),
        limit_percent: terms.and_then(|terms| terms.share).map(|share| share * 100.0),
        floor_ns,
        floor_instructions,
        change: Some(record.clone()),
        ..Line::new(record.part, record.handler, evidence)
    }
}

/// The first part of which no comparison can fail, and the level that the smallest p-value has to reach.
fn too_few_runs(parts: &[Part<'_>], sampled: &[Pending], rule: &Rule) -> Option<(usize, f64)> {
    let level = rule.alpha / sampled.len().max(1) as f64;
    // Both are quotients: allow for rounding.
    let is_hopeless = |part: &Part<'_>| part.design.smallest_p() > level * (1.0 + 1e-9);
    let is_compared = |part: &Part<'_>| {
        let is_its = |figure: &Pending| figure.record.part == part.name;
        part.meter() == Meter::Probes
            && !part.base.is_empty()
            && (sampled.is_empty() || sampled.iter().any(is_its))
    };
    let part = parts.iter().position(|part| is_compared(part) && is_hopeless(part))?;
    Some((part, level))
}

/// Lines on figures that probes measured, whose p-values are adjusted for each other.
fn judged(sampled: Vec<Pending>) -> impl Iterator<Item = Line> {
    let p_values: [fn(&ChangeRecord) -> Option<f64>; 2] = [|of| of.p_slower, |of| of.p_faster];
    let [slower, faster] = p_values.map(|of| {
        let of = |figure: &Pending| of(&figure.record).unwrap_or(1.0);
        stats::adjust(&sampled.iter().map(of).collect::<Vec<f64>>())
    });
    sampled.into_iter().zip(slower.into_iter().zip(faster)).map(|(figure, (slower, faster))| Line {
        p_adjusted: Some(slower),
        ..figure.judged(slower, faster)
    })
}

/// Lines of a budget: one per handler of the candidate and operation that it matches.
fn budget_lines(budget: &Budget, parts: &[Part<'_>], rule: &Rule) -> Vec<Line> {
    let line = |part: Option<String>, name: &str, evidence: Evidence| Line {
        statistic: Some(budget.statistic),
        budget: Some(budget.text.clone()),
        meter: budget.below.meter,
        ..Line::new(part, name.to_owned(), evidence)
    };
    let mut lines = Vec::new();
    for part in parts {
        let mut add = |name: &str, judge: &dyn Fn() -> Evidence| {
            if budget.pattern.matches(name) {
                let is_its = part.meter() == budget.below.meter;
                let evidence = if is_its { judge() } else { Evidence::OtherUnit };
                lines.push(line(part.name.clone(), name, evidence));
            }
        };
        let mut seen = HashSet::new();
        for handler in part.candidate.iter().flat_map(|run| &run.recording.handlers) {
            let key = (handler.module.as_deref(), handler.name.as_str());
            if seen.insert(key) {
                add(&handler.name, &|| spent(budget, &part.candidate, key, rule));
            }
        }
        for load in part.operations() {
            let costs = part.candidate.iter().filter_map(|run| run.cost(load));
            let values: Vec<f64> = costs.map(DriverCost::added_ns).collect();
            add(&operation_of(load), &|| within(budget, &values));
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
    if share > rule.max_loss {
        return Evidence::Lost { share, allowed: rule.max_loss };
    }
    within(budget, &values)
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
    let Some((value, bounds)) = found else { return Evidence::NoValue };
    Evidence::Spent { value, bounds, below: budget.below.value, counted, runs: values.len() }
}

/// Module parameters whose defaults differ, each once.
fn changed_defaults(parts: &[Part<'_>]) -> Vec<String> {
    let of = |part: &Part<'_>| {
        Some(defaults(&part.base.first()?.recording, &part.candidate.first()?.recording))
    };
    let words: BTreeSet<String> = parts.iter().filter_map(of).flatten().collect();
    Vec::from_iter(words)
}

fn notes(sides: &Sides<'_>, rule: &Rule) -> Vec<String> {
    let mut notes = sides.notes.clone();
    for part in &sides.parts {
        let [base, candidate] = [&part.base, &part.candidate]
            .map(|runs| runs.first().map_or(Vec::new(), |run| run.builds().collect()));
        if !base.is_empty() && base == candidate {
            notes.push(format!("{}both sides are of the same build", part.prefix()));
        }
        let floors = rule.floor.into_iter().chain(rule.handlers.iter().filter_map(|it| it.floor));
        for floor in floors.filter(|floor| floor.meter != part.meter()) {
            let unit = match part.meter() {
                Meter::Exact => "calls were counted in instructions",
                Meter::Probes => "calls have durations",
            };
            let prefix = part.prefix();
            notes.push(format!("{prefix}the floor of {floor} does not apply, for {unit}"));
        }
        if part.clock() == Clock::Wall && !part.design.in_turns {
            notes.push(format!(
                "{}the sides did not take turns on the wall clock, so a drift of the machine looks like a \
                 change: the limits are doubled unless they were given",
                part.prefix()
            ));
        }
    }
    notes.extend(ordering(sides));
    let runs = || sides.parts.iter().flat_map(Part::runs);
    let handlers = || runs().flat_map(|run| &run.recording.handlers);
    let operations: Vec<String> =
        sides.parts.iter().flat_map(Part::operations).map(operation_of).collect();
    for HandlerRule { pattern, .. } in &rule.handlers {
        if !handlers().map(|it| &it.name).chain(&operations).any(|name| pattern.matches(name)) {
            notes.push(format!("no handler matches `{pattern}` of the rule file"));
        }
    }
    notes
}

/// Notes on handlers whose calls have more or fewer ordering instructions, by the load under which they differ most. They have no limit.
fn ordering(sides: &Sides<'_>) -> impl Iterator<Item = String> {
    let mut most: BTreeMap<&str, [f64; 2]> = BTreeMap::new();
    for part in &sides.parts {
        for handler in part.base.iter().flat_map(|run| &run.recording.handlers) {
            let both =
                [&part.base, &part.candidate].map(|runs| ordering_a_call(runs, &handler.name));
            let [Some(base), Some(candidate)] = both else { continue };
            let known = most.get(&*handler.name).map_or(0.0, |[was, is]| (is - was).abs());
            if (candidate - base).abs() >= ORDERING.max(known) {
                most.insert(&handler.name, [base, candidate]);
            }
        }
    }
    most.into_iter().map(|(handler, [base, candidate])| {
        format!(
            "{handler}: {base:.1} to {candidate:.1} instructions a call are atomic, fences or serialising, each of which takes as \
             long as tens of others"
        )
    })
}

/// The average over all calls; `None` if a run did not count them.
fn ordering_a_call(runs: &[&Run], name: &str) -> Option<f64> {
    let (mut instructions, mut calls) = (0_u64, 0_u64);
    let handlers = runs.iter().flat_map(|run| &run.recording.handlers);
    for handler in handlers.filter(|handler| handler.name == name) {
        instructions = instructions.saturating_add(handler.ordering?);
        calls = calls.saturating_add(handler.count);
    }
    stats::mean(instructions, calls)
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
