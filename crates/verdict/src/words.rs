//! Figures, changes and designs in words.

use indicatif::HumanFloatCount;
use itertools::Itertools as _;

use profiler_base::stats::smallest_p;
use profiler_base::text::plural;
use profiler_recording::Meter;

use super::{ChangeRecord, Design, DesignKind, Part, Statistic, load_of};

/// The values of both sides.
pub(super) fn values(record: &ChangeRecord) -> String {
    let [base, candidate] =
        [record.base, record.candidate].map(|value| figure(value.unwrap_or(0.0), record.meter()));
    format!("{base} to {candidate}")
}

/// How often something happens on both sides.
pub(super) fn numbers(record: &ChangeRecord) -> String {
    let [base, candidate] = [record.base, record.candidate].map(|it| grouped(it.unwrap_or(0.0)));
    let what = match (record.statistic, load_of(&record.handler)) {
        (Statistic::Repeated, Some(_)) => "iterations an operation",
        (Statistic::Repeated, None) => "iterations a call",
        _ => "calls",
    };
    format!("{base} to {candidate} {what}")
}

/// Before the evidence for a handler that is called less often.
pub const FEWER: &str = "fewer: ";

/// A number with commas; one decimal below 1,000 unless it is whole.
pub(super) fn grouped(value: f64) -> String {
    let rounded = if value.abs() < 1e3 { (value * 10.0).round() / 10.0 } else { value.round() };
    let sign = if rounded < 0.0 { "-" } else { "" };
    format!("{sign}{:.1}", HumanFloatCount(rounded.abs()))
}

/// By how much a cost changed.
pub(super) fn changed(record: &ChangeRecord) -> String {
    match record.percent {
        Some(percent) => format!("{percent:+.2} % ({})", values(record)),
        None => signed(record.change.unwrap_or(0.0), record.meter()),
    }
}

/// What is not in the change of a counted cost.
pub(super) fn but_for(record: &ChangeRecord) -> String {
    match record.one_call {
        None => String::new(),
        Some(_) if record.statistic != Statistic::Avg => " but for one call".to_owned(),
        // Too small to matter.
        Some(outside) if outside.abs() < 0.5 => String::new(),
        Some(outside) => format!(" but for {outside:+.1} outside of the driver's functions"),
    }
}

/// How far a counted figure differs from placement to placement; `alike` is said if it does not.
pub(super) fn by_placement(
    alike: &str,
    [lowest, highest]: [String; 2],
    placements: usize,
) -> String {
    match placements {
        1 => format!("{alike} in one placement"),
        more if lowest == highest => format!("{alike} in each of {more} placements"),
        more => format!(", varies with placement: {lowest} to {highest} in {more} placements"),
    }
}

/// Why no regression can be found in a part.
pub(super) fn too_few_runs(part: &Part<'_>, level: f64, comparisons: usize, alpha: f64) -> String {
    let comparisons = comparisons.max(1);
    format!(
        "too few runs to find any regression, however large: {}{} give a p-value of {:.5} at best, and \
         {comparisons} comparison{} at alpha {} need {level:.5}: measure {}",
        part.prefix(),
        design(&part.design, Meter::Probes),
        part.design.smallest_p(),
        plural(comparisons),
        alpha,
        enough(&part.design, level),
    )
}

/// Runs that suffice for the smallest p-value to be at most `level`.
fn enough(design: &Design, level: f64) -> String {
    if design.kind == DesignKind::Shared {
        let (base, candidate) = design.sizes().into_iter().max().unwrap_or((2, 2));
        let boots = (1..10_000).find(|boots| smallest_p(vec![(base, candidate); *boots]) <= level);
        let (boots, here) = (boots.unwrap_or(10_000), design.blocks.len());
        let longer = runs_in(here, level).map_or(String::new(), |runs| {
            format!(", or {runs} v {runs} runs in each of these {here}")
        });
        return format!("{boots} boots with {base} v {candidate} runs each{longer}");
    }
    let n = runs_in(1, level).unwrap_or(1_000);
    if design.blocks.iter().flatten().flatten().all(|runs| runs.len() == 1) {
        return format!("{n} v {n} runs, each in a boot of its own, or runs in turns in one boot");
    }
    format!(
        "{n} v {n} boots (runs of one boot count as one value, because they are not independent), or \
         runs of both sides in turns in the same boots"
    )
}

/// Runs of either side in each of so many boots that suffice.
fn runs_in(boots: usize, level: f64) -> Option<usize> {
    (1..=1_000).find(|n| smallest_p(vec![(*n, *n); boots]) <= level)
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", plural(number))
}

/// The design of a comparison: `2 boots of both sides, 4 v 4 runs each, in turns`, or `3 placements of both sides`.
pub fn design(design: &Design, meter: Meter) -> String {
    let boot = if meter == Meter::Exact { "placement" } else { "boot" };
    if design.kind == DesignKind::Apart {
        let [[base, base_boots], [candidate, candidate_boots]] = [0, 1].map(|side| {
            let groups = design.blocks.iter().flat_map(|sides| &sides[side]);
            let (boots, runs) = (groups.clone().count(), groups.map(Vec::len).sum());
            [counted(runs, "run"), counted(boots, boot)]
        });
        if meter == Meter::Exact {
            return format!(
                "{base_boots} of the baseline, {candidate_boots} of the candidate, none in common: each is compared with each"
            );
        }
        return format!(
            "{base} of the baseline in {base_boots}, {candidate} of the candidate in {candidate_boots}, apart"
        );
    }
    let mut text = format!("{} of both sides", counted(design.blocks.len(), boot));
    if meter == Meter::Probes {
        let sizes = design.sizes().into_iter().dedup();
        let sizes = sizes.map(|(base, candidate)| format!("{base} v {candidate}")).collect_vec();
        let each = if design.blocks.len() > 1 && sizes.len() == 1 { " each" } else { "" };
        let turns = if design.in_turns { "in turns" } else { "not in turns" };
        text += &format!(", {} runs{each}, {turns}", sizes.join(", "));
    }
    if design.left_out > 0 {
        text += &format!("; {} of others left out", counted(design.left_out, "run"));
    }
    text
}

/// A figure of this meter in words: 6215.2 ns, 62.152 us, 412.0 instructions.
pub fn figure(value: f64, meter: Meter) -> String {
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

/// A difference with its sign, in the unit of `meter`.
pub fn signed(value: f64, meter: Meter) -> String {
    format!("{}{}", if value < 0.0 { "" } else { "+" }, figure(value, meter))
}

/// A share in percent.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let places = if percent != 0.0 && percent.abs() < 0.095 { 3 } else { 2 };
    let text = format!("{percent:.places$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} %")
}

pub(super) fn p_value(p: f64) -> String {
    if p < 0.0001 { "below 0.0001".to_owned() } else { format!("{p:.4}") }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
