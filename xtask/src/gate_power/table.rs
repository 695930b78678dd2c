//! The table in docs, and bounds of its shares.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;
use statrs::distribution::{Beta, ContinuousCDF as _};

use crate::cli::GatePowerArgs;

use super::{HANDLER, OPERATION, variant::MODULE};

pub(super) const HEAD: &str = "\
| driver | handlers | slower: `connect_syscall_handler` by instructions | limit | decisions | false alarms | at most | found | at least | inconclusive | placements | change of `connect_syscall_handler`, instructions | largest change of a figure |
|---|---|---|---|---:|---:|---:|---:|---:|---:|---|---|---:|
";

/// What a report of the gate says.
#[derive(Debug)]
pub(super) struct Decision {
    /// The slower handler failed.
    pub(super) is_found: bool,
    /// Something failed that is not slower.
    pub(super) is_false_alarm: bool,
    is_inconclusive: bool,
    /// The most placements that a figure was decided by.
    placements: u64,
    /// The change of [`HANDLER`] in instructions, if it was judged.
    change: Option<f64>,
    /// The largest change of any figure to the worse, in percent.
    largest: Option<f64>,
}

impl Decision {
    /// `slower` is the number of instructions that [`HANDLER`] takes more.
    pub(super) fn of(slower: u64, report: &Value) -> Result<Self> {
        let lines = report["lines"].as_array().context("no lines in the gate's report")?;
        let failed = lines.iter().filter(|line| line["verdict"] == "fail");
        let failed: Vec<&Value> = failed.map(|line| &line["handler"]).collect();
        let is_slower = |name: &&Value| slower > 0 && (**name == HANDLER || **name == OPERATION);
        // The average, or the only cost that a limit judges: the number of calls is none.
        let mut of_handler = lines.iter().filter(|line| line["handler"] == HANDLER);
        let cost =
            of_handler.find(|line| line["statistic"] == "avg" || line["statistic"] == "tp50");
        let changes = lines.iter().map(|line| &line["change"]);
        let placements = changes.clone().filter_map(|change| change["placements"].as_u64()).max();
        let largest = changes.filter_map(|change| change["percent"].as_f64());
        Ok(Self {
            is_found: slower > 0 && failed.iter().any(|handler| **handler == HANDLER),
            is_false_alarm: !failed.iter().all(is_slower),
            is_inconclusive: report["outcome"] == "inconclusive",
            placements: placements.unwrap_or(0),
            change: cost.and_then(|line| line["change"]["change"].as_f64()),
            largest: largest.max_by(f64::total_cmp),
        })
    }
}

/// The row of decisions that were asked for in the same way.
pub(super) fn row(args: &GatePowerArgs, slower: u64, decisions: &[Decision]) -> String {
    let all = decisions.len();
    let count = |is: fn(&Decision) -> bool| decisions.iter().filter(|one| is(one)).count();
    let (alarms, found) = (count(|one| one.is_false_alarm), count(|one| one.is_found));
    let (by, found, at_least) = match slower {
        0 => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
        by => (format!("+{by}"), found.to_string(), share(lowest(found, all))),
    };
    let mut placements: BTreeMap<u64, usize> = BTreeMap::new();
    for one in decisions {
        *placements.entry(one.placements).or_default() += 1;
    }
    let placements: Vec<String> =
        placements.iter().map(|(placements, times)| format!("{placements}: {times}")).collect();
    let changes = || decisions.iter().filter_map(|one| one.change);
    let change = match (changes().min_by(f64::total_cmp), changes().max_by(f64::total_cmp)) {
        (Some(least), Some(most)) if least != most => format!("{least:+.1} to {most:+.1}"),
        (Some(same), _) => format!("{same:+.1}"),
        (None, _) => "-".to_owned(),
    };
    let largest = decisions.iter().filter_map(|one| one.largest).max_by(f64::total_cmp);
    let largest = largest.map_or("-".to_owned(), |percent| format!("{percent:+.3} %"));
    format!(
        "| {} | {} | {by} | {} | {all} | {alarms} | {} | {found} | {at_least} | {} | {} | {change} | {largest} |\n",
        if args.module == MODULE { "test module" } else { &args.module },
        args.handler.as_ref().map_or("all".to_owned(), |glob| format!("`{glob}`")),
        args.max_regression.as_ref().map_or("default".to_owned(), |limit| format!("`{limit}`")),
        share(highest(alarms, all)),
        count(|one| one.is_inconclusive),
        placements.join(", "),
    )
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_failed_is_found_or_a_false_alarm() {
        let line = |handler: &str, verdict: &str| {
            json!({"handler": handler, "verdict": verdict, "statistic": "avg",
                   "change": {"placements": 3, "base": 5851.0, "change": 59.0, "percent": 1.008}})
        };
        let calls = json!({"handler": HANDLER, "verdict": "pass", "statistic": "count",
                           "change": {"placements": 3, "base": 400.0, "change": 0.0, "percent": 0.0}});
        let lines =
            [calls, line(HANDLER, "fail"), line(OPERATION, "fail"), line("bind_handler", "pass")];
        let report = json!({"outcome": "fail", "lines": lines});
        let slower = Decision::of(59, &report).unwrap();
        assert!(slower.is_found && !slower.is_false_alarm);
        assert_eq!((slower.placements, slower.change), (3, Some(59.0)));
        assert_eq!(slower.largest, Some(1.008));
        let equal = Decision::of(0, &report).unwrap();
        assert!(!equal.is_found && equal.is_false_alarm);
    }

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
