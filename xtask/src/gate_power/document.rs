//! The table in docs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::Result;

use crate::process;

use super::decision::Decision;
use crate::cli::Slower;

const HEAD: &str = "\
# How well the gate judges

Decisions of `profiler gate` with its default settings on builds of the test module, one of which is slower by a known
number of instructions in every call of one handler. The limits are the defaults, or those that the row names. The instructions are compiled in, so no parameter or file reveals them. Each
decision has its own boots. *False alarms* are decisions in which a handler failed that is not slower; *found* are those in
which only the slower handler failed. *Others pass* are those in which every handler that is not slower passed. On the wall
clock, the percentage is of the handler's fastest call, and the length of one iteration comes from the fastest calls of two
builds, both measured in a boot of their own on the quiet machine; averages under a second load are longer.

Written by `cargo xtask gate-power` (see its help); [gate.md](gate.md) has the rule.
";

/// Decisions of one kind: how measured, noise, handler, the change in instructions, and in thousandths of a percent,
/// and the limit.
type Kind = (String, bool, String, u64, u64, Option<String>);

fn kinds(decisions: &[Decision]) -> BTreeMap<Kind, Vec<&Decision>> {
    let mut kinds: BTreeMap<Kind, Vec<&Decision>> = BTreeMap::new();
    for decision in decisions {
        let (instructions, change) = match decision.slower {
            Slower::Instructions(count) => (count, 0),
            Slower::Percent(percent) => (0, (percent * 1000.0).round() as u64),
        };
        let handler = if decision.is_slower() { decision.handler.clone() } else { String::new() };
        let (measure, limit) = (decision.measure.clone(), decision.limit.clone());
        let kind = (measure, decision.noisy, handler, instructions, change, limit);
        kinds.entry(kind).or_default().push(decision);
    }
    kinds
}

/// The document.
pub(super) fn render(decisions: &[Decision]) -> Result<String> {
    let mut text = HEAD.to_owned();
    let command: Vec<String> = std::env::args().skip(1).collect();
    let date = process::stdout(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    let _ = writeln!(
        text,
        "\nOn {}, last with `cargo xtask {}`, on {}.\n",
        date.trim(),
        command.join(" "),
        machine()
    );
    text.push_str(
        "| measured | slower handler | by | limit | decisions | found | false alarms | others pass | undecided | measured change | seconds a decision |\n\
         |---|---|---:|---|---:|---:|---:|---:|---:|---|---:|\n",
    );
    for ((measure, noisy, handler, _, _, limit), decisions) in kinds(decisions) {
        let count = |is: fn(&Decision) -> bool| decisions.iter().filter(|one| is(one)).count();
        let slower = decisions.first().map_or(Slower::Percent(0.0), |one| one.slower);
        let (by, found) = match slower {
            Slower::Percent(0.0) => ("0".to_owned(), "-".to_owned()),
            Slower::Percent(percent) => {
                (format!("+{percent} %"), count(Decision::found).to_string())
            }
            Slower::Instructions(more) => {
                (format!("+{}", super::instructions(more)), count(Decision::found).to_string())
            }
        };
        let _ = writeln!(
            text,
            "| {measure}{} | {} | {by} | {} | {} | {found} | {} | {} | {} | {} | {} |",
            if noisy { ", second load on every CPU" } else { "" },
            if handler.is_empty() { "none" } else { &handler },
            limit.as_deref().unwrap_or("default"),
            decisions.len(),
            count(Decision::is_false_alarm),
            count(Decision::others_passed),
            count(|one| one.outcome == "inconclusive"),
            range(decisions.iter().filter_map(|one| one.measured), |v| format!("{v:+.2} %")),
            range(decisions.iter().map(|one| one.seconds), |v| format!("{v:.0}")),
        );
    }
    let mut designs: Vec<String> =
        decisions.iter().map(|one| format!("{}: {}", one.measure, one.design)).collect();
    designs.sort_unstable();
    designs.dedup();
    let _ = writeln!(text, "\nA decision rests on, {}.", designs.join("; "));
    Ok(text)
}

/// Smallest to largest.
fn range(values: impl Iterator<Item = f64>, show: impl Fn(f64) -> String) -> String {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    match (sorted.first(), sorted.last()) {
        (Some(first), Some(last)) if show(*first) != show(*last) => {
            format!("{} to {}", show(*first), show(*last))
        }
        (Some(first), _) => show(*first),
        _ => "-".to_owned(),
    }
}

/// CPU model and count; no names.
fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<&str> = cpuinfo
        .lines()
        .filter(|line| line.starts_with("model name"))
        .filter_map(|line| line.split_once(':'))
        .map(|(_, model)| model.trim())
        .collect();
    match models.first() {
        Some(model) => format!("{} CPUs of {model}", models.len()),
        None => "a CPU of unknown model".to_owned(),
    }
}

/// No false alarm; where instructions were counted, every change is found; else everything from +2 % on, and +1 %
/// eight times of ten.
pub(super) fn keeps_promises(decisions: &[Decision]) -> bool {
    !decisions.iter().any(Decision::is_false_alarm)
        && kinds(decisions).into_iter().all(|((measure, ..), decisions)| {
            let slower = decisions.first().map_or(Slower::Percent(0.0), |one| one.slower);
            let found = decisions.iter().filter(|one| one.found()).count() as f64;
            let needed = match (measure.as_str(), slower) {
                (_, Slower::Percent(0.0)) => 0.0,
                ("exact", _) | ("virtual", Slower::Percent(2.0..)) => 1.0,
                (_, Slower::Percent(50.0..)) => 1.0,
                ("virtual", Slower::Percent(1.0..)) => 0.8,
                _ => 0.0,
            };
            found >= needed * decisions.len() as f64
        })
}
