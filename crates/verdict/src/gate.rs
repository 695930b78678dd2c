//! The gate: judges runs by a rule.

use std::collections::{BTreeMap, BTreeSet};

use itertools::Itertools as _;

use profiler_base::stats;
use profiler_recording::unlike::defaults;
use profiler_recording::{Clock, Meter};

use super::change::load_of;
use super::judge::{self, Figure, Terms, other_unit};
use super::placement::{FIRST_PLACEMENTS, MOST_PLACEMENTS};
use super::{
    Budget, ChangeRecord, Gate, HandlerRule, ITERATIONS_AN_INSTRUCTION, Limit, Line, Measured,
    Outcome, Part, Rule, Run, Sides, Statistic, Verdict, changes, words,
};

/// A run may have this many calls more than the baseline's: it may end before the deferred work of its last operations.
const CALLS_FLOOR: f64 = 4.0;

/// Smallest difference in ordering instructions (atomic, fences, serialising) per call that is reported.
const ORDERING: f64 = 0.05;

/// Judges the candidate against the baseline and against the rule's budgets.
pub fn gate<'a>(sides: Result<Sides<'a>, String>, rule: &Rule) -> Gate<'a> {
    let mut gate = Gate::default();
    let sides = match sides {
        Ok(sides) => sides,
        Err(summary) => return Gate { outcome: Outcome::NotComparable, summary, ..gate },
    };
    let records: Vec<Vec<ChangeRecord>> = sides.parts.iter().map(changes).collect();
    gate.notes = notes(&sides, &records, rule);
    gate.parts = sides.parts;
    gate.defaults = changed_defaults(&gate.parts);
    let budgets = rule.budgets.iter().flat_map(|budget| budget_lines(budget, &records, rule));
    let budgets: Vec<Line> = budgets.collect();
    let mut pending = Vec::new();
    let parts = gate.parts.iter().zip(records);
    for (part, records) in parts.filter(|(part, _)| !part.base.is_empty()) {
        let (lines, of_part) = sorted(part, records, rule);
        gate.lines.extend(lines);
        pending.extend(of_part);
    }
    let (counted, sampled): (Vec<_>, Vec<_>) =
        pending.into_iter().partition(|figure| figure.record.meter() == Meter::Exact);
    gate.comparisons = sampled.len();
    if let Some((part, level)) = too_few_runs(&gate.parts, &sampled, rule) {
        let summary = words::too_few_runs(part, level, gate.comparisons, rule.alpha);
        return Gate { outcome: Outcome::TooFewRuns, summary, ..gate };
    }
    gate.lines.extend(counted.into_iter().map(|figure| figure.judged(1.0, 1.0)));
    gate.lines.extend(judged(sampled));
    gate.lines.extend(budgets);
    // Stable: within a kind, in the order of the handlers.
    gate.lines.sort_by_key(|line| match line.verdict {
        Verdict::Fail => 0,
        Verdict::Vanished | Verdict::Inconclusive => 1,
        Verdict::Insufficient => 2,
        Verdict::Pass | Verdict::New => 3,
    });
    (gate.outcome, gate.summary) = conclusion(&gate.lines, rule);
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
    let open = sides.parts.iter().filter(|part| is_open(part, rule));
    open.map(|part| part.name.clone()).collect()
}

fn is_open(part: &Part<'_>, rule: &Rule) -> bool {
    let records = changes(part);
    let disagree = disagree_on_budget(&records, rule);
    let (_, mut figures) = sorted(part, records, rule);
    figures.retain(|figure| figure.record.meter() == Meter::Exact);
    let failed: BTreeSet<&str> = figures.iter().filter_map(Figure::failed_operation).collect();
    match part.design.placements() {
        0..FIRST_PLACEMENTS => disagree || !figures.iter().all(Figure::is_far_within),
        FIRST_PLACEMENTS..MOST_PLACEMENTS => {
            disagree
                || figures.iter().any(|it| it.is_astride() && !failed.contains(&*it.record.handler))
        }
        _ => false,
    }
}

/// Whether some placements keep a budget and others do not.
fn disagree_on_budget(records: &[ChangeRecord], rule: &Rule) -> bool {
    let mut budgets = rule.budgets.iter().filter(|budget| budget.below.meter == Meter::Exact);
    budgets.any(|budget| {
        let mut on = records.iter().filter(|record| budget.is_on(record));
        on.any(|record| {
            let ends = stats::ends(&record.candidate_values()).unwrap_or_default();
            judge::not_spent(budget, record, rule.max_loss).is_none()
                && ends[0] < budget.below.value
                && ends[1] >= budget.below.value
        })
    })
}

impl Figure {
    /// The operation whose mean this is, if it fails in each placement.
    fn failed_operation(&self) -> Option<&str> {
        let is_mean = self.record.statistic == Statistic::Avg;
        load_of(&self.record.handler)
            .filter(|_| is_mean && !self.is_astride() && !self.passes())?;
        Some(&self.record.handler)
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
}

/// The figures of a part: lines on those that cannot be judged, and those that are still to be.
fn sorted(part: &Part<'_>, records: Vec<ChangeRecord>, rule: &Rule) -> (Vec<Line>, Vec<Figure>) {
    let measured =
        Measured { meter: part.meter(), clock: part.clock(), in_turns: part.design.in_turns };
    let (mut lines, mut pending) = (Vec::new(), Vec::new());
    // The baseline's, which comes before what is judged by a share of it.
    let mut average = None;
    for record in records {
        if record.statistic == Statistic::Avg {
            average = record.base;
        }
        if record.base_calls.total == 0 || record.candidate_calls.total == 0 {
            if record.statistic == Statistic::Count {
                // One line for the whole handler.
                let found = judge::absent(&record);
                lines.push(Line { statistic: None, ..judge::line(record, found) });
            }
            continue;
        }
        let limit = rule.limit(&record.handler, record.statistic, measured);
        let floor = rule.floor(&record.handler, measured);
        let (share, floor) = match (limit, record.statistic) {
            (Limit::Off, _) => continue,
            (Limit::By(amount), _) if amount.meter != measured.meter => {
                let limits = ["limit as 'tp99=+5 instructions'", "limit as 'tp99=+20ns'"];
                lines.push(judge::line(record, other_unit(measured.meter, limits)));
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
        let Rule { max_loss, alpha, .. } = *rule;
        let terms = Terms { share, floor, max_loss, alpha, clock: measured.clock };
        let figure = Figure { record, terms };
        match judge::insufficient(&figure.record) {
            Some(found) => lines.push(figure.line(found)),
            None => pending.push(figure),
        }
    }
    (lines, pending)
}

/// The first part of which no comparison can fail, and the level that the smallest p-value has to reach.
fn too_few_runs<'a, 'b>(
    parts: &'b [Part<'a>],
    sampled: &[Figure],
    rule: &Rule,
) -> Option<(&'b Part<'a>, f64)> {
    let level = rule.alpha / sampled.len().max(1) as f64;
    let part = parts.iter().find(|part| {
        part.meter() == Meter::Probes
            && !part.base.is_empty()
            && (sampled.is_empty() || sampled.iter().any(|it| it.record.part == part.name))
            // Both are quotients: allow for rounding.
            && part.design.smallest_p() > level * (1.0 + 1e-9)
    })?;
    Some((part, level))
}

/// Lines on figures that probes measured, whose p-values are adjusted for each other.
fn judged(sampled: Vec<Figure>) -> impl Iterator<Item = Line> {
    let p_values: [fn(&ChangeRecord) -> Option<f64>; 2] = [|of| of.p_slower, |of| of.p_faster];
    let [slower, faster] = p_values.map(|of| {
        let each = sampled.iter().map(|figure| of(&figure.record).unwrap_or(1.0));
        stats::adjust(&each.collect::<Vec<f64>>())
    });
    sampled.into_iter().zip(slower.into_iter().zip(faster)).map(|(figure, (slower, faster))| Line {
        p_adjusted: Some(slower),
        ..figure.judged(slower, faster)
    })
}

/// Lines of a budget: one per handler of the candidate and operation that it is on.
fn budget_lines(budget: &Budget, records: &[Vec<ChangeRecord>], rule: &Rule) -> Vec<Line> {
    let on = records.iter().flatten().filter(|record| budget.is_on(record));
    let lines = on.map(|record| {
        let found = judge::not_spent(budget, record, rule.max_loss)
            .unwrap_or_else(|| judge::within(budget.below, &record.candidate_values()));
        Line { part: record.part.clone(), handler: record.handler.clone(), ..found }
    });
    let mut lines: Vec<Line> = lines.collect();
    if lines.is_empty() {
        let pattern = &budget.pattern;
        let words = match load_of(pattern.as_str()) {
            Some(_) => format!("no {pattern} was counted with the driver and without it"),
            None => format!("no handler of the candidate matches `{pattern}`"),
        };
        let found = Line::new(Verdict::Inconclusive, words);
        lines.push(Line { handler: pattern.to_string(), ..found });
    }
    for line in &mut lines {
        line.statistic = Some(budget.statistic);
        line.budget = Some(budget.text.clone());
        line.meter = budget.below.meter;
    }
    lines
}

/// Module parameters whose defaults differ, each once.
fn changed_defaults(parts: &[Part<'_>]) -> Vec<String> {
    let firsts = parts.iter().filter_map(|part| part.base.first().zip(part.candidate.first()));
    let words = firsts.flat_map(|(base, new)| defaults(&base.recording, &new.recording));
    words.sorted_unstable().dedup().collect()
}

fn notes(sides: &Sides<'_>, records: &[Vec<ChangeRecord>], rule: &Rule) -> Vec<String> {
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
    for HandlerRule { pattern, .. } in &rule.handlers {
        if !records.iter().flatten().any(|record| pattern.matches(&record.handler)) {
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

/// The outcome that follows from lines, and a sentence on it.
fn conclusion(lines: &[Line], rule: &Rule) -> (Outcome, String) {
    let count = |verdict: Verdict| lines.iter().filter(|line| line.verdict == verdict).count();
    let (passed, vanished) = (count(Verdict::Pass), count(Verdict::Vanished));
    let not_allowed = if rule.allow_vanished { 0 } else { vanished };
    let undecided = count(Verdict::Inconclusive) + count(Verdict::Insufficient) + not_allowed;
    let mut tail = format!("{passed} passed");
    let improved = lines.iter().filter(|line| line.improved).count();
    if improved > 0 {
        tail += &format!(" ({improved} faster)");
    }
    for (count, what) in [(count(Verdict::New), "new"), (vanished, "vanished")] {
        if count > 0 {
            tail += &format!(", {count} {what}");
        }
    }
    if let Some(first) = lines.iter().find(|line| line.verdict == Verdict::Fail) {
        let more = match count(Verdict::Fail) {
            1 => String::new(),
            all => format!(" and {} more", all - 1),
        };
        let (subject, figure) = (first.subject(), first.figure());
        let words = format!(
            "{subject} {figure}{more} failed: {}; {undecided} undecided, {tail}",
            first.evidence
        );
        return (Outcome::Fail, words);
    }
    if undecided > 0 {
        (Outcome::Inconclusive, format!("none failed, {undecided} undecided, {tail}"))
    } else if passed == 0 {
        (Outcome::Inconclusive, "nothing was judged: all limits are off".to_owned())
    } else {
        (Outcome::Pass, tail)
    }
}
