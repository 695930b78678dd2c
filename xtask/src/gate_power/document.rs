//! The table in docs, and bounds of its shares.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use statrs::distribution::{Beta, ContinuousCDF as _};

use crate::process;
use crate::setup;

use super::{Decision, HANDLER, Kind, SERIES, variant::MODULE};

/// The head of what is measured; the text above it is written by hand.
const MEASURED: &str = "\nMeasured until ";

/// The document with the table of these decisions.
pub(super) fn render(
    old: &str,
    profiler: &Path,
    date: &str,
    decisions: &[Decision],
) -> Result<String> {
    let (head, _) = old.split_once(MEASURED).context("docs/gate-power.md has no `Measured`")?;
    let mut text = head.to_owned();
    let _ = writeln!(
        text,
        "{MEASURED}{date} by {} with {}\nand Linux {} on {}.\nSeconds are without the builds; the machine did other work meanwhile.\n",
        process::version(profiler)?,
        process::version("qemu-system-x86_64")?,
        setup::kernel(SERIES)?.release,
        machine(),
    );
    let equal = decisions.iter().filter(|one| one.kind.slower == 0);
    let mut pairs: BTreeMap<_, bool> = BTreeMap::new();
    for one in equal {
        *pairs.entry((&one.kind.driver, one.seed)).or_default() |= !one.false_alarms.is_empty();
    }
    let alarms = pairs.values().filter(|alarm| **alarm).count();
    let _ = writeln!(
        text,
        "Of **{} pairs** of builds of equal cost, {alarms} had a false alarm by any row's limits: at most {}.\n",
        pairs.len(),
        share(highest(alarms, pairs.len())),
    );
    let _ = writeln!(
        text,
        "| driver | handlers | slower: `{HANDLER}` by instructions | limit | decisions | false alarms | at most | found | at least | inconclusive | placements | change of `{HANDLER}`, instructions | largest change of a figure | seconds a decision, median (longest) |\n\
         |---|---|---|---|---:|---:|---:|---:|---:|---:|---|---|---:|---:|"
    );
    let mut kinds: BTreeMap<&Kind, Vec<&Decision>> = BTreeMap::new();
    for decision in decisions {
        kinds.entry(&decision.kind).or_default().push(decision);
    }
    for (kind, decisions) in kinds {
        text.push_str(&row(kind, &decisions));
    }
    Ok(text)
}

fn row(kind: &Kind, decisions: &[&Decision]) -> String {
    let all = decisions.len();
    let alarms = decisions.iter().filter(|one| !one.false_alarms.is_empty()).count();
    let inconclusive = decisions.iter().filter(|one| one.outcome == "inconclusive").count();
    let found = decisions.iter().filter(|one| one.found).count();
    let (by, found, at_least) = match kind.slower {
        0 => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
        by => (format!("+{by}"), found.to_string(), share(lowest(found, all))),
    };
    let mut placements: BTreeMap<u64, usize> = BTreeMap::new();
    for one in decisions {
        *placements.entry(one.placements).or_default() += 1;
    }
    let placements: Vec<String> =
        placements.iter().map(|(placements, times)| format!("{placements}: {times}")).collect();
    let change = match &sorted(decisions.iter().filter_map(|one| one.change))[..] {
        [first, .., last] if first != last => format!("{first:+.1} to {last:+.1}"),
        [first, ..] => format!("{first:+.1}"),
        [] => "-".to_owned(),
    };
    let largest = decisions.iter().filter_map(|one| one.largest).max_by(f64::total_cmp);
    let largest = largest.map_or("-".to_owned(), |percent| format!("{percent:+.3} %"));
    let seconds = sorted(decisions.iter().map(|one| one.seconds));
    let driver = if kind.driver == MODULE { "test module" } else { &kind.driver };
    format!(
        "| {driver} | {} | {by} | {} | {all} | {alarms} | {} | {found} | {at_least} | {inconclusive} | {} | {change} | {largest} | {:.0} ({:.0}) |\n",
        code(kind.handler.as_deref(), "all"),
        code(kind.limit.as_deref(), "default"),
        share(highest(alarms, all)),
        placements.join(", "),
        seconds[all / 2],
        seconds[all - 1],
    )
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

fn code(of: Option<&str>, none: &str) -> String {
    of.map_or(none.to_owned(), |of| format!("`{of}`"))
}

fn share(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The largest share of which as few as `some` of `all` are seen in one of twenty cases.
fn highest(some: usize, all: usize) -> f64 {
    // The only errors are of parameters that are not above 0.
    let of = Beta::new(some as f64 + 1.0, (all - some) as f64);
    of.map_or(1.0, |of| of.inverse_cdf(0.95))
}

/// The smallest share, likewise.
fn lowest(some: usize, all: usize) -> f64 {
    1.0 - highest(all - some, all)
}

/// CPU model and count; no names.
pub(crate) fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let lines = cpuinfo.lines().filter_map(|line| line.strip_prefix("model name"));
    let models: Vec<&str> = lines.map(|line| line.trim_matches([' ', '\t', ':'])).collect();
    format!("{} CPUs of {}", models.len(), models.first().unwrap_or(&"unknown model"))
}

#[cfg(test)]
mod tests {
    use super::{highest, lowest};

    /// Values of R's `binom.test(..., conf.level = 0.9)`.
    #[test]
    fn bounds_are_exact() {
        let near =
            |value: f64, known: f64| assert!((value - known).abs() < 5e-5, "{value} {known}");
        near(highest(0, 300), 0.0099);
        near(highest(0, 40), 0.0722);
        near(highest(1, 40), 0.11319);
        near(lowest(20, 20), 0.8609);
        near(lowest(0, 20), 0.0);
        near(highest(20, 20), 1.0);
    }
}
