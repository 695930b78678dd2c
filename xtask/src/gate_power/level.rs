//! How long a handler takes and how much the testbed's loop adds to it: what a percent is.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::cli::Measure;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::testbed::{self, More, Slow};

use super::decision::{self, Lab};

/// Instructions of one iteration of the testbed's loop, and of what is around the loop.
const ITERATION: f64 = 2.0;
const AROUND: f64 = 3.0;

/// Iterations of the pilot's slower build: long beside what a fastest call varies by.
const PILOT_ITERATIONS: u64 = 5_000;

/// What a handler takes, in instructions or in ns of one clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Level {
    /// One call.
    call: f64,
    /// One iteration of the loop that makes it slower.
    iteration: f64,
    /// What is around that loop.
    around: f64,
    /// Whether single instructions are added in place of iterations.
    nops: bool,
}

impl Level {
    /// As `lab` measures.
    ///
    /// In instructions and under virtual time it is the average in a decision on the same driver, found in `decisions`, and an
    /// iteration is two instructions. On the wall clock both are measured in a boot of their own: the fastest calls,
    /// which are those that nothing else on the machine came into.
    pub(super) fn of(
        paths: &Paths,
        lab: &Lab,
        decisions: &Path,
        handler: &str,
        base: &Path,
    ) -> Result<Self> {
        match lab.args.measure {
            Measure::Exact | Measure::Virtual => Ok(Self {
                call: average(decisions, handler)?,
                iteration: ITERATION,
                around: AROUND,
                nops: lab.args.measure == Measure::Exact,
            }),
            Measure::Wall => Self::by_pilot(paths, lab, handler, base),
        }
    }

    fn by_pilot(paths: &Paths, lab: &Lab, handler: &str, base: &Path) -> Result<Self> {
        let place = paths.target().join("gate-power/pilot");
        process::empty_dir(&place)?;
        let more = More::Iterations(PILOT_ITERATIONS);
        let slow = Slow { handler: handler.to_owned(), more };
        let slow = testbed::build_slow(paths, Series::V6_1, &slow)?;
        let mut lab = lab.clone();
        (lab.args.boots, lab.args.rounds) = (1, 1);
        process::run_logged(&mut lab.command(&place, base, &slow), &place.join("lab.log"))?;
        let fastest = |name: &str| -> Result<f64> {
            fastest(&process::read_json(&place.join(name))?, handler)
        };
        let (call, slower) = (fastest("baseline.json")?, fastest("candidate.json")?);
        ensure!(
            slower > call,
            "{handler} takes {call} ns, and {slower} ns where it was made slower"
        );
        let iteration = (slower - call) / PILOT_ITERATIONS as f64;
        println!(
            "gate-power: {handler} takes {call:.0} ns at its fastest, an iteration {iteration:.3} ns"
        );
        Ok(Self { call, iteration, around: 0.0, nops: false })
    }

    /// What makes a call longer by that share.
    pub(super) fn more(&self, percent: f64) -> Result<More> {
        let wanted = self.call * percent / 100.0;
        let (count, more): (f64, fn(u64) -> More) = match self.nops {
            true => (wanted, More::Nops),
            false => ((wanted - self.around) / self.iteration, More::Iterations),
        };
        if count.round() < 1.0 {
            bail!("{percent} % of {:.0} are less than can be added", self.call);
        }
        Ok(more(count.round() as u64))
    }
}

/// The fastest call of a handler in a series of runs, in ns.
fn fastest(series: &Value, handler: &str) -> Result<f64> {
    let runs = series["runs"].as_array().context("no runs")?;
    let of_run = |run: &Value| {
        let mut handlers = run["handlers"].as_array()?.iter();
        handlers.find(|one| one["name"] == handler)?["min_ns"].as_f64()
    };
    let fastest = runs.iter().filter_map(of_run).min_by(f64::total_cmp);
    fastest.with_context(|| format!("no call of {handler}"))
}

/// The handler's average in nanoseconds or instructions, in a decision on the same driver below a folder.
fn average(decisions: &Path, handler: &str) -> Result<f64> {
    let first = fs::read_dir(decisions)
        .with_context(|| format!("cannot read {}", decisions.display()))?
        .find_map(|place| average_in(&place.ok()?.path(), handler).ok());
    first.with_context(|| {
        format!(
            "no decision on the same driver to take the average of {handler} from: ask for 0=1 too"
        )
    })
}

fn average_in(place: &Path, handler: &str) -> Result<f64> {
    if !decision::is_of_the_same(place)? {
        bail!("{} is of a slower driver", place.display());
    }
    let series = process::read_json(&place.join("baseline.json"))?;
    let handlers = series["runs"][0]["handlers"].as_array().context("no handlers")?;
    let found = handlers.iter().find(|one| one["name"] == handler).context("no such handler")?;
    let sum = found["sum_ns"].as_f64().or_else(|| found["sum_instructions"].as_f64());
    let sum = sum.context("no sum")?;
    let count = found["count"].as_f64().filter(|count| *count > 0.0).context("no call")?;
    Ok(sum / count)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_percent_is_a_number_of_iterations() {
        let level = Level { call: 6507.0, iteration: ITERATION, around: AROUND, nops: false };
        assert_eq!(level.more(1.0).unwrap(), More::Iterations(31));
        assert!(level.more(0.01).is_err());
        let exact = Level { nops: true, ..level };
        assert_eq!(exact.more(1.0).unwrap(), More::Nops(65));
        assert_eq!(exact.more(0.01).unwrap(), More::Nops(1));
        assert!(exact.more(0.001).is_err());
        let wall = Level { call: 4900.0, iteration: 0.7, around: 0.0, nops: false };
        assert_eq!(wall.more(50.0).unwrap(), More::Iterations(3500));
    }

    #[test]
    fn the_fastest_call_is_that_of_any_run() {
        let run = |min: u64| json!({"handlers": [{"name": "a", "min_ns": min}, {"name": "b", "min_ns": 1}]});
        let series = json!({"runs": [run(50), run(40)]});
        assert_eq!(fastest(&series, "a").unwrap(), 40.0);
        assert!(fastest(&series, "c").is_err());
    }
}
