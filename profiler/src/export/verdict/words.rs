//! The sentences of comparisons and gates.

use indicatif::HumanFloatCount;

use crate::recording::{Clock, Meter};
use crate::stats::smallest_p;
use crate::text::plural;
use crate::verdict::{
    ChangeRecord, Conclusion, Design, DesignKind, Evidence, Gate, ITERATIONS_AN_INSTRUCTION, Line,
    Part, Shown, Statistic, Tally, Threshold, Verdict, load_of,
};

/// The reason of a verdict, in one line.
pub(super) fn evidence(gate: &Gate<'_>, line: &Line) -> String {
    // What is in no part, such as a budget that matches nothing, has no change.
    let part = gate.parts.iter().find(|part| part.name == line.part);
    of_line(line, part.map_or(Clock::Wall, Part::clock))
}

fn of_line(line: &Line, clock: Clock) -> String {
    let statistic = line.statistic.map_or(String::new(), |statistic| statistic.to_string());
    // Lines about a budget have no change.
    let change = line.change.as_ref();
    let [base, candidate] =
        change.map(|change| [change.base_calls, change.candidate_calls]).unwrap_or_default();
    let values = change.map_or("the figure".to_owned(), values);
    match line.evidence {
        Evidence::Gone if !candidate.known => format!(
            "{} calls in the baseline, and the candidate has no such handler: renamed, inlined or no \
             longer measured",
            base.total
        ),
        Evidence::Gone => {
            format!("{} calls in the baseline, and none in the candidate", base.total)
        }
        Evidence::New => {
            format!("{} calls in the candidate, and none in the baseline", candidate.total)
        }
        Evidence::NeverCalled => "no call on either side: the load does not reach it".to_owned(),
        Evidence::FewCalls { needed, fewest, side: None } => {
            format!("{statistic} needs {needed} calls in every run, and a run has {fewest}")
        }
        Evidence::FewCalls { needed, fewest, side: Some(side) } => format!(
            "{statistic} needs {needed} calls in every run, and a run of the {side} has {fewest}: raise \
             the load's operations, or turn {statistic} off for this handler"
        ),
        Evidence::NoValue => {
            "not known of all runs of both sides, so that there is nothing to compare".to_owned()
        }
        Evidence::Lost { share, allowed } => format!(
            "{} of a run's calls were lost, and the limit is {}: {values} is not certain; lower the \
             load's workers",
            percent(share),
            percent(allowed)
        ),
        Evidence::NoBounds => format!("{values}: too few runs for bounds"),
        Evidence::Change { limit, shown } => {
            change.map_or(String::new(), |change| changed(change, limit, shown, clock))
        }
        Evidence::Spent { value, bounds, below, counted, runs } => {
            let spent = if counted { spent_counted } else { spent };
            spent(line, [value, bounds[0], bounds[1], below], runs)
        }
        Evidence::OtherUnit => other_unit(line.meter, line.budget.is_some()).to_owned(),
        Evidence::NoMatch if load_of(&line.handler).is_some() => {
            format!("no {} was counted with the driver and without it", line.handler)
        }
        Evidence::NoMatch => format!("no handler of the candidate matches `{}`", line.handler),
    }
}

/// What to write instead of a budget or limit in the unit of the other meter.
const fn other_unit(meter: Meter, is_budget: bool) -> &'static str {
    match (meter, is_budget) {
        (Meter::Probes, true) => {
            "its recordings count instructions: write the budget as 'HANDLER:tp99<3000 instructions'"
        }
        (Meter::Exact, true) => {
            "its recordings have durations: write the budget as 'HANDLER:tp99<2us'"
        }
        (Meter::Exact, false) => {
            "its recordings count instructions: write the limit as 'tp99=+5 instructions'"
        }
        (Meter::Probes, false) => "its recordings have durations: write the limit as 'tp99=+20ns'",
    }
}

/// The values of both sides.
fn values(record: &ChangeRecord) -> String {
    let value = |value: Option<f64>| figure(value.unwrap_or(0.0), record.meter());
    format!("{} to {}", value(record.base), value(record.candidate))
}

/// How often something happens, in words of its own.
fn changed_number(record: &ChangeRecord, limit: Threshold, shown: Shown) -> String {
    let ends = record.change_bounds.unwrap_or_default().map(|end| format!("{end:+.1}"));
    let places = by_placement("", ends, record.placements.unwrap_or(1));
    let [base, candidate] = [record.base, record.candidate].map(|it| grouped(it.unwrap_or(0.0)));
    let mut limit = match limit {
        Threshold::Share(share) => percent(share),
        Threshold::Floor(most) | Threshold::By(most) => format!("+{}", grouped(most)),
    };
    let what = match (record.statistic, load_of(&record.handler)) {
        (Statistic::Repeated, Some(_)) => "iterations an operation",
        (Statistic::Repeated, None) => "iterations a call",
        _ => "calls",
    };
    if record.statistic == Statistic::Repeated {
        limit += &format!(": {ITERATIONS_AN_INSTRUCTION} weigh as an instruction");
    }
    let fewer = if matches!(shown, Shown::Fewer) { FEWER } else { "" };
    format!("{fewer}{base} to {candidate} {what}{places}, limit {limit}")
}

/// A value of the figure that changed, in its unit.
pub(crate) fn quantity(value: f64, change: &ChangeRecord) -> String {
    match change.statistic.is_cost() {
        true => figure(value, change.meter()),
        false => format!("{} {}", grouped(value), change.unit),
    }
}

/// Before the evidence for a handler that is called less often.
pub(crate) const FEWER: &str = "fewer: ";

/// A number with commas; one decimal below 1,000 unless it is whole.
fn grouped(value: f64) -> String {
    let rounded = if value.abs() < 1e3 { (value * 10.0).round() / 10.0 } else { value.round() };
    let sign = if rounded < 0.0 { "-" } else { "" };
    format!("{sign}{:.1}", HumanFloatCount(rounded.abs()))
}

fn changed(record: &ChangeRecord, limit: Threshold, shown: Shown, clock: Clock) -> String {
    if !record.statistic.is_cost() {
        return changed_number(record, limit, shown);
    }
    let meter = record.meter();
    let change = record.percent.map_or_else(
        || signed(record.change.unwrap_or(0.0), meter),
        |percent| format!("{percent:+.2} % ({})", values(record)),
    );
    let percent_bounds = record.percent_bounds.filter(|_| !matches!(limit, Threshold::By(_)));
    let limit = match limit {
        Threshold::Floor(floor) => format!("limit {} (floor)", figure(floor, meter)),
        Threshold::Share(share) => format!("limit {}", percent(share)),
        Threshold::By(most) => format!("limit {}", signed(most, meter)),
    };
    let [low, high] = match (percent_bounds, record.change_bounds) {
        (Some(bounds), _) => bounds.map(|bound| format!("{bound:+.2} %")),
        (None, bounds) => bounds.unwrap_or_default().map(|bound| signed(bound, meter)),
    };
    if let (Some(placements), Some(ends)) = (record.placements, record.change_bounds) {
        let faster = if matches!(shown, Shown::Faster { .. }) { "faster: " } else { "" };
        let one_call = match record.one_call {
            None => String::new(),
            Some(_) if record.statistic != Statistic::Avg => " but for one call".to_owned(),
            // Too small to matter.
            Some(outside) if outside.abs() < 0.5 => String::new(),
            Some(outside) => format!(" but for {outside:+.1} outside of the driver's functions"),
        };
        let ends = ends.map(|end| format!("{end:+.1}"));
        let places = by_placement(&format!(", {}", ends[0]), ends, placements);
        let more = match shown {
            Shown::Undecided => ": what lies outside of the handlers takes more placements to tell",
            _ => "",
        };
        return format!("{faster}{change}{one_call}{places}, {limit}{more}");
    }
    let adjusted = |p: Option<f64>| p.map_or("-".to_owned(), p_value);
    match shown {
        Shown::Slower { p } => {
            format!("{change}, at least {low}, {limit}; p {} adjusted", adjusted(p))
        }
        Shown::Overlap { p } => format!(
            "{change}, at least {low}, {limit}, but runs of both sides overlap (p {} adjusted): measure more runs",
            p_value(p)
        ),
        Shown::Faster { p } => {
            format!("faster: {change}, at most {high}; p {} adjusted", adjusted(p))
        }
        Shown::Within | Shown::Fewer => format!("{change}, at most {high}, {limit}"),
        Shown::Undecided => {
            let quieter = match clock {
                Clock::Wall => ", or on a quieter machine",
                Clock::Virtual => "",
            };
            format!("{change}, between {low} and {high}, {limit}: measure more runs{quieter}")
        }
    }
}

/// How far a counted figure differs from placement to placement; `alike` is said if it does not.
fn by_placement(alike: &str, [lowest, highest]: [String; 2], placements: usize) -> String {
    match placements {
        1 => format!("{alike} in one placement"),
        more if lowest == highest => format!("{alike} in each of {more} placements"),
        more => format!(", varies with placement: {lowest} to {highest} in {more} placements"),
    }
}

/// Counted calls against a budget.
fn spent_counted(line: &Line, [value, lowest, highest, below]: [f64; 4], runs: usize) -> String {
    let not = if line.verdict == Verdict::Fail { "not " } else { "" };
    let places = by_placement("", [lowest, highest].map(|end| format!("{end:.1}")), runs);
    let [value, below] = [value, below].map(|value| figure(value, line.meter));
    format!("{value}{places}, {not}below {below}")
}

fn spent(line: &Line, values: [f64; 4], runs: usize) -> String {
    let [value, lower, upper, below] = values.map(|value| figure(value, line.meter));
    let runs = if runs == 1 { "one run".to_owned() } else { format!("{runs} runs") };
    match line.verdict {
        Verdict::Pass => format!("{value}, at most {upper}, below {below}; {runs}"),
        Verdict::Fail => format!("{value}, at least {lower}, not below {below}; {runs}"),
        _ => format!("{value}, between {lower} and {upper}, budget {below}; {runs}"),
    }
}

/// The outcome of a gate in a sentence; a refusal has several lines.
pub(super) fn summary(gate: &Gate<'_>) -> String {
    match &gate.conclusion {
        Conclusion::NotComparable(why) => why.clone(),
        Conclusion::TooFewRuns { part, level } => too_few_runs(gate, &gate.parts[*part], *level),
        Conclusion::Judged(tally) => judged(gate, tally),
    }
}

fn judged(gate: &Gate<'_>, tally: &Tally) -> String {
    let mut tail = format!("{} passed", tally.passed);
    if tally.improved > 0 {
        tail += &format!(" ({} faster)", tally.improved);
    }
    for (count, what) in [(tally.new, "new"), (tally.vanished, "vanished")] {
        if count > 0 {
            tail += &format!(", {count} {what}");
        }
    }
    let undecided = tally.undecided;
    if let Some(first) = gate.lines.iter().find(|line| line.verdict == Verdict::Fail) {
        let more = match tally.failed {
            1 => String::new(),
            all => format!(" and {} more", all - 1),
        };
        return format!(
            "{} {}{more} failed: {}; {undecided} undecided, {tail}",
            first.subject(),
            first.figure(),
            evidence(gate, first)
        );
    }
    if undecided > 0 {
        format!("none failed, {undecided} undecided, {tail}")
    } else if tally.passed == 0 {
        "nothing was judged: all limits are off".to_owned()
    } else {
        tail
    }
}

fn too_few_runs(gate: &Gate<'_>, part: &Part<'_>, level: f64) -> String {
    let comparisons = gate.comparisons.max(1);
    format!(
        "too few runs to find any regression, however large: {}{} give a p-value of {:.5} at best, and \
         {comparisons} comparison{} at alpha {} need {level:.5}: measure {}",
        part.prefix(),
        design(&part.design, Meter::Probes),
        part.design.smallest_p(),
        plural(comparisons),
        gate.alpha,
        enough(&part.design, level),
    )
}

/// Runs that suffice for the smallest p-value to be at most `level`.
fn enough(design: &Design, level: f64) -> String {
    let suffice = |boots: usize, base: usize, candidate: usize| {
        smallest_p(vec![(base, candidate); boots]) <= level
    };
    let runs_in = |boots: usize| (1..=1_000).find(|n| suffice(boots, *n, *n));
    if design.kind == DesignKind::Shared {
        let (base, candidate) = design.sizes().into_iter().max().unwrap_or((2, 2));
        let boots = (1..10_000).find(|boots| suffice(*boots, base, candidate)).unwrap_or(10_000);
        let here = design.blocks.len();
        let longer = runs_in(here).map_or(String::new(), |runs| {
            format!(", or {runs} v {runs} runs in each of these {here}")
        });
        return format!("{boots} boots with {base} v {candidate} runs each{longer}");
    }
    let n = runs_in(1).unwrap_or(1_000);
    if design.blocks.iter().flatten().flatten().all(|runs| runs.len() == 1) {
        return format!("{n} v {n} runs, each in a boot of its own, or runs in turns in one boot");
    }
    format!(
        "{n} v {n} boots (runs of one boot count as one value, because they are not independent), or \
         runs of both sides in turns in the same boots"
    )
}

/// The design of a comparison: `2 boots of both sides, 4 v 4 runs each, in turns`, or `3 placements of both sides`.
pub(super) fn design(design: &Design, meter: Meter) -> String {
    let boot = if meter == Meter::Exact { "placement" } else { "boot" };
    let count = |number: usize, what: &str| format!("{number} {what}{}", plural(number));
    if design.kind == DesignKind::Apart {
        let side = |side: usize| {
            let groups = design.blocks.iter().flat_map(|sides| &sides[side]);
            let (boots, runs) = (groups.clone().count(), groups.map(Vec::len).sum());
            [count(runs, "run"), count(boots, boot)]
        };
        let [[base, base_boots], [candidate, candidate_boots]] = [0, 1].map(side);
        if meter == Meter::Exact {
            return format!(
                "{base_boots} of the baseline, {candidate_boots} of the candidate, none in common: each is compared with each"
            );
        }
        return format!(
            "{base} of the baseline in {base_boots}, {candidate} of the candidate in {candidate_boots}, apart"
        );
    }
    let mut text = format!("{} of both sides", count(design.blocks.len(), boot));
    if meter == Meter::Probes {
        let size = |(base, candidate): (usize, usize)| format!("{base} v {candidate}");
        let mut sizes: Vec<String> = design.sizes().into_iter().map(size).collect();
        sizes.dedup();
        let each = if design.blocks.len() > 1 && sizes.len() == 1 { " each" } else { "" };
        let turns = if design.in_turns { "in turns" } else { "not in turns" };
        text += &format!(", {} runs{each}, {turns}", sizes.join(", "));
    }
    if design.left_out > 0 {
        text += &format!("; {} of others left out", count(design.left_out, "run"));
    }
    text
}

/// A figure of this meter in words: 6215.2 ns, 62.152 us, 412.0 instructions.
pub(crate) fn figure(value: f64, meter: Meter) -> String {
    match meter {
        Meter::Probes => ns(value),
        Meter::Exact => format!("{value:.1} instructions"),
    }
}

fn ns(ns: f64) -> String {
    match ns.abs() {
        ..1e4 => format!("{ns:.1} ns"),
        ..1e7 => format!("{:.3} us", ns / 1e3),
        _ => format!("{:.3} ms", ns / 1e6),
    }
}

fn signed(value: f64, meter: Meter) -> String {
    format!("{}{}", if value < 0.0 { "" } else { "+" }, figure(value, meter))
}

/// A share in percent.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let places = if percent != 0.0 && percent.abs() < 0.095 { 3 } else { 2 };
    let text = format!("{percent:.places$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} %")
}

fn p_value(p: f64) -> String {
    if p < 0.0001 { "below 0.0001".to_owned() } else { format!("{p:.4}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Side;

    #[test]
    fn quantities_in_words() {
        assert_eq!(
            [6215.23, 62_152.3, 62_152_345.0].map(ns),
            ["6215.2 ns", "62.152 us", "62.152 ms"]
        );
        assert_eq!(
            [0.005, 0.1, 0.0005, 0.0, 1.0].map(percent),
            ["0.5 %", "10 %", "0.05 %", "0 %", "100 %"]
        );
        assert_eq!(
            (signed(2.0, Meter::Probes), signed(-2.0, Meter::Probes)),
            ("+2.0 ns".to_owned(), "-2.0 ns".to_owned())
        );
        assert_eq!(p_value(0.000_01), "below 0.0001");
    }

    #[test]
    fn numbers_in_words() {
        let values = [0.0, 8.0, 8.25, 999.96, 131_072.0, -1_234_567.4];
        let expected = ["0", "8", "8.3", "1,000", "131,072", "-1,234,567"];
        assert_eq!(values.map(grouped), expected);
    }

    fn line(evidence: Evidence) -> Line {
        let calls = serde_json::json!({ "total": 800, "fewest": 99, "known": true });
        let change = serde_json::json!({
            "handler": "h", "module": null, "statistic": "tp90", "unit": "ns",
            "base": 1000.0, "candidate": 1030.0,
            "change": 30.0, "change_bounds": [20.0, 40.0],
            "percent": 3.0, "percent_bounds": [2.0, 4.0],
            "p_slower": null, "p_faster": null, "base_runs": [], "candidate_runs": [],
            "base_calls": calls, "candidate_calls": calls,
            "resolution": 0.0, "lost_share": 0.0, "base_spread": null,
        });
        let change: ChangeRecord = serde_json::from_value(change).unwrap();
        Line {
            verdict: evidence.verdict(),
            improved: evidence.improved(),
            evidence,
            part: None,
            handler: "h".to_owned(),
            statistic: Some(change.statistic),
            budget: None,
            limit_percent: None,
            floor_ns: None,
            floor_instructions: None,
            p_adjusted: None,
            meter: Meter::Probes,
            change: Some(change),
        }
    }

    #[test]
    fn evidence_in_words() {
        let change = |limit, shown| Evidence::Change { limit, shown };
        let share = Threshold::Share(0.01);
        let side = Some(Side::Candidate);
        for (found, expected) in [
            (
                change(share, Shown::Slower { p: Some(0.049) }),
                "+3.00 % (1000.0 ns to 1030.0 ns), at least +2.00 %, limit 1 %; p 0.0490 adjusted",
            ),
            (
                change(share, Shown::Overlap { p: 0.05 }),
                "+3.00 % (1000.0 ns to 1030.0 ns), at least +2.00 %, limit 1 %, but runs of both \
                 sides overlap (p 0.0500 adjusted): measure more runs",
            ),
            (
                change(Threshold::Floor(20.0), Shown::Undecided),
                "+3.00 % (1000.0 ns to 1030.0 ns), between +2.00 % and +4.00 %, limit 20.0 ns (floor): \
                 measure more runs, or on a quieter machine",
            ),
            (
                Evidence::Lost { share: 0.0011, allowed: 0.001 },
                "0.11 % of a run's calls were lost, and the limit is 0.1 %: 1000.0 ns to 1030.0 ns is \
                 not certain; lower the load's workers",
            ),
            (Evidence::NoBounds, "1000.0 ns to 1030.0 ns: too few runs for bounds"),
            (
                Evidence::FewCalls { needed: 100, fewest: 99, side },
                "tp90 needs 100 calls in every run, and a run of the candidate has 99: raise the load's \
                 operations, or turn tp90 off for this handler",
            ),
        ] {
            assert_eq!(of_line(&line(found), Clock::Wall), expected);
        }
        let undecided = line(change(share, Shown::Undecided));
        assert!(of_line(&undecided, Clock::Virtual).ends_with(", limit 1 %: measure more runs"));
    }
}
