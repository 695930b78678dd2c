//! How long a handler takes and how much the testbed's loop adds to it: what a percent is.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::cli::PowerClock;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::testbed::{self, Slow};

use super::decision::{self, Lab};

/// Instructions of one iteration of the testbed's loop, and of what is around the loop.
const ITERATION: f64 = 2.0;
const AROUND: f64 = 3.0;

/// Iterations of the pilot's slower build: long beside what a fastest call varies by.
const PILOT_ITERATIONS: u64 = 5_000;

/// What a handler takes, in ns of one clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Level {
    /// One call.
    call: f64,
    /// One iteration of the loop that makes it slower.
    iteration: f64,
    /// What is around that loop.
    around: f64,
}

impl Level {
    /// Of the clock that `lab` has.
    ///
    /// Under virtual time it is the average in a decision on the same driver, found in `decisions`, and an
    /// iteration is two instructions. On the wall clock both are measured in a boot of their own: the fastest calls,
    /// which are those that nothing else on the machine came into.
    pub(super) fn of(
        paths: &Paths,
        lab: &Lab,
        decisions: &Path,
        handler: &str,
        base: &Path,
    ) -> Result<Self> {
        match lab.args.clock {
            PowerClock::Virtual => Ok(Self {
                call: average(decisions, handler)?,
                iteration: ITERATION,
                around: AROUND,
            }),
            PowerClock::Wall => Self::by_pilot(paths, lab, handler, base),
        }
    }

    fn by_pilot(paths: &Paths, lab: &Lab, handler: &str, base: &Path) -> Result<Self> {
        let place = paths.target().join("gate-power/pilot");
        process::empty_dir(&place)?;
        let slow = Slow { handler: handler.to_owned(), iterations: PILOT_ITERATIONS };
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
        Ok(Self { call, iteration, around: 0.0 })
    }

    /// Iterations that make a call longer by that share.
    pub(super) fn iterations(&self, percent: f64) -> Result<u64> {
        let iterations = ((self.call * percent / 100.0 - self.around) / self.iteration).round();
        if iterations < 1.0 {
            bail!("{percent} % of {:.0} ns are less than one iteration of the loop", self.call);
        }
        Ok(iterations as u64)
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

/// The handler's average in nanoseconds, in a decision on the same driver below a folder.
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
    if decision::percent(place)? != 0.0 {
        bail!("{} is of a slower driver", place.display());
    }
    let series = process::read_json(&place.join("baseline.json"))?;
    let handlers = series["runs"][0]["handlers"].as_array().context("no handlers")?;
    let found = handlers.iter().find(|one| one["name"] == handler).context("no such handler")?;
    let sum = found["sum_ns"].as_f64().context("no sum")?;
    let count = found["count"].as_f64().filter(|count| *count > 0.0).context("no call")?;
    Ok(sum / count)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_percent_is_a_number_of_iterations() {
        let level = Level { call: 6507.0, iteration: ITERATION, around: AROUND };
        assert_eq!(level.iterations(1.0).unwrap(), 31);
        assert!(level.iterations(0.01).is_err());
        let wall = Level { call: 4900.0, iteration: 0.7, around: 0.0 };
        assert_eq!(wall.iterations(50.0).unwrap(), 3500);
    }

    #[test]
    fn the_fastest_call_is_that_of_any_run() {
        let run = |min: u64| json!({"handlers": [{"name": "a", "min_ns": min}, {"name": "b", "min_ns": 1}]});
        let series = json!({"runs": [run(50), run(40)]});
        assert_eq!(fastest(&series, "a").unwrap(), 40.0);
        assert!(fastest(&series, "c").is_err());
    }
}
