//! The lab, from outside: two builds of the testbed, of which one is slower in its code alone, in two
//! boots; what came out of them, and what the gate says to it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::report::Report;
use crate::cargo;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::Kernel;
use crate::testbed::{self, Slow};
use crate::vm::quote;

/// The place of these tests in the report, and their name as a boot.
pub(super) const PLACE: &str = "lab";
const SERIES: Series = Series::V6_1;

/// The handler that the second build makes slower, and by how much.
const HANDLER: &str = "connect_syscall_handler";
const ITERATIONS: u64 = 64;

/// Instructions of [`ITERATIONS`]: two each, and those that begin the loop; an average is off by a few
/// for the timer interrupts that it holds.
const ADDED_NS: std::ops::RangeInclusive<f64> = 127.0..=135.0;

/// The other handler of the load, in which nothing has changed.
const OTHER: &str = "connect_syscall_entry_handler";

/// How far runs of one build may be apart, in parts of their median.
const SPREAD: f64 = 0.005;

/// How far what the driver adds to an operation may be from what it adds where that is the only load, in
/// parts of it: there are fewer operations to share a timer interrupt.
const COST_AGREEMENT: f64 = 0.05;

/// Exit codes of `profiler`, which docs/exit-codes.md lists.
const REGRESSION: i32 = 10;
const LAB_FAILED: i32 = 15;

/// Runs all of it: four boots.
pub(super) fn run(paths: &Paths, report: &mut Report) -> Result<()> {
    println!("test: the lab");
    let Some(lab) = report.step(PLACE, "builds", Lab::build(paths)) else { return Ok(()) };
    let series = report.step(PLACE, "two builds in turns", lab.two_builds());
    if let Some([baseline, candidate]) = series {
        let place = |name: &str| format!("{name} repeats within 0.5 %");
        for (name, series) in [("baseline", &baseline), ("candidate", &candidate)] {
            report.step(PLACE, &place(name), repeats(series));
        }
        report.step(PLACE, "a change of the code is measured", difference(&baseline, &candidate));
        report.step(PLACE, "the gate stops a script", lab.gate());
        report.step(PLACE, "what waits is not a cost", lab.costs(&baseline));
    }
    report.step(PLACE, "a driver that does not load", lab.refused_driver());
    Ok(())
}

struct Lab {
    profiler: PathBuf,
    kernel: PathBuf,
    vng: PathBuf,
    baseline: PathBuf,
    candidate: PathBuf,
    out: PathBuf,
}

impl Lab {
    fn build(paths: &Paths) -> Result<Self> {
        let kernel = Kernel::open(paths, SERIES).context("no kernel")?;
        let slow = Slow { handler: HANDLER.to_owned(), iterations: ITERATIONS };
        let out = paths.target().join("test/lab");
        process::remove_dir(&out)?;
        process::create_dir(&out)?;
        Ok(Self {
            profiler: cargo::build_tests(paths)?.profiler,
            kernel: kernel.image(),
            vng: paths.venv().join("bin/vng"),
            baseline: testbed::build(paths, SERIES)?,
            candidate: testbed::build_slow(paths, SERIES, &slow)?,
            out,
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.profiler);
        command.arg("lab").arg("--kernel").arg(&self.kernel).arg("--vng").arg(&self.vng);
        command.args(["--quiet", "--handler", "connect_*", "--builtin", "connect"]);
        command.arg("--logs").arg(self.out.join("logs"));
        command
    }

    /// Two boots with both builds in turns, as the defaults have it; gives both series.
    fn two_builds(&self) -> Result<[Value; 2]> {
        let mut command = self.command();
        command.arg("--baseline").arg(&self.baseline).arg("--candidate").arg(&self.candidate);
        command.arg("--out").arg(&self.out);
        print!("{}", process::stdout(&mut command)?);
        let read = |name: &str| -> Result<Value> {
            let text = std::fs::read_to_string(self.out.join(name))
                .with_context(|| format!("no {name}"))?;
            Ok(serde_json::from_str(&text)?)
        };
        let series = [read("baseline.json")?, read("candidate.json")?];
        // ABBAABBA in one boot, BAABBAAB in the other.
        let (outer, inner) = ([0, 3, 4, 7], [1, 2, 5, 6]);
        let places = |boots: [[u64; 4]; 2]| -> Vec<(u64, u64)> {
            (0..).zip(boots).flat_map(|(boot, orders)| orders.map(|order| (boot, order))).collect()
        };
        let expected = [places([outer, inner]), places([inner, outer])];
        for (series, places) in series.iter().zip(expected) {
            let found: Vec<(u64, u64)> = runs(series)
                .iter()
                .filter_map(|run| {
                    Some((run["place"]["boot"].as_u64()?, run["place"]["order"].as_u64()?))
                })
                .collect();
            ensure!(found == places, "{} has the places {found:?}", series["label"]);
            for run in runs(series) {
                ensure!(run["clock"] == "virtual", "the clock is {}", run["clock"]);
                let cost = &run["driver_costs"][0];
                let (without, with) = (number(&cost["without_ns"])?, number(&cost["with_ns"])?);
                ensure!(with > without * 1.5, "an operation takes {without} and {with}");
            }
        }
        let build = |series: &Value| runs(series)[0]["modules"][0]["build_id"].clone();
        ensure!(build(&series[0]) != build(&series[1]), "both series are of one build");
        Ok(series)
    }

    /// `set -e` has to end a script at a gate that fails.
    fn gate(&self) -> Result<()> {
        let word = |path: &Path| quote(&path.to_string_lossy());
        let script = format!(
            "set -e\n{} gate {} {}\necho NOT-REACHED\n",
            word(&self.profiler),
            word(&self.out.join("baseline.json")),
            word(&self.out.join("candidate.json"))
        );
        let output = process::capture(Command::new("sh").args(["-c", &script]))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        let all = format!("{said}{error}");
        ensure!(output.status.code() == Some(REGRESSION), "{}:\n{all}", output.status);
        ensure!(!said.contains("NOT-REACHED"), "the script went on:\n{all}");
        let failed: Vec<&str> =
            all.lines().filter(|line| line.to_lowercase().contains("fail")).collect();
        ensure!(failed.iter().any(|line| line.contains(HANDLER)), "{HANDLER} did not fail:\n{all}");
        ensure!(!failed.iter().any(|line| line.contains(OTHER)), "{OTHER} failed too:\n{all}");
        Ok(())
    }

    /// Loads side by side are timed one after another: what the driver adds to a `connect` is what it adds
    /// in `alone`, and nothing gets cheaper by it.
    fn costs(&self, alone: &Value) -> Result<()> {
        let file = self.out.join("costs.json");
        let mut command = self.command();
        command.args(["--builtin", "execve,bind,open", "--operations", "400", "--module"]);
        command.arg(&self.baseline).arg("--json").arg(&file);
        print!("{}", process::stdout(&mut command)?);
        let text = std::fs::read_to_string(&file).with_context(|| "no costs.json")?;
        let run: Value = serde_json::from_str(&text)?;
        let costs = run["driver_costs"].as_array().context("no driver_costs")?;
        ensure!(costs.len() == 4, "{costs:?}");
        let added = |cost: &Value| -> Result<f64> {
            Ok(number(&cost["with_ns"])? - number(&cost["without_ns"])?)
        };
        for cost in costs {
            ensure!(added(cost)? > 0.0, "{cost} became cheaper by the driver");
        }
        let connect = costs.iter().find(|cost| cost["load"] == "connect").context("no connect")?;
        let (beside, alone) = (added(connect)?, added(&runs(alone)[0]["driver_costs"][0])?);
        println!("lab: the driver adds {beside:.1} ns to a connect, {alone:.1} ns to one alone");
        let off = (beside - alone).abs() / alone;
        ensure!(off <= COST_AGREEMENT, "{beside} ns are added to a connect, and {alone} ns alone");
        Ok(())
    }

    /// Parameters that the module refuses: its own words have to come through.
    fn refused_driver(&self) -> Result<()> {
        let mut command = self.command();
        command.arg("--module").arg(&self.baseline).args(["--module-params", "maxactive=1"]);
        let output = process::capture(&mut command)?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(LAB_FAILED), "{}:\n{error}", output.status);
        for part in ["did not load hids_testbed with `maxactive=1`", "maxactive=1 is outside"] {
            ensure!(error.contains(part), "`{part}` is not said:\n{error}");
        }
        Ok(())
    }
}

/// Every handler and statistic of the runs of one build.
fn repeats(series: &Value) -> Result<()> {
    for handler in [HANDLER, OTHER] {
        for quantile in [None, Some(0.90), Some(0.95), Some(0.99)] {
            let values = values(series, handler, quantile)?;
            let spread = (values[values.len() - 1] - values[0]) / median(&values);
            ensure!(spread <= SPREAD, "{handler}, {quantile:?}: {values:?} are {spread:.4} apart");
        }
    }
    Ok(())
}

fn difference(baseline: &Value, candidate: &Value) -> Result<()> {
    let added = |handler| -> Result<f64> {
        let median_of = |series| Ok::<f64, anyhow::Error>(median(&values(series, handler, None)?));
        Ok(median_of(candidate)? - median_of(baseline)?)
    };
    let (changed, other) = (added(HANDLER)?, added(OTHER)?);
    println!("lab: {HANDLER} takes {changed:.2} ns more, {OTHER} {other:.2} ns");
    ensure!(ADDED_NS.contains(&changed), "{HANDLER} takes {changed} ns more, not {ADDED_NS:?}");
    ensure!(other.abs() < 2.0, "{OTHER} takes {other} ns more and was not changed");
    Ok(())
}

fn runs(series: &Value) -> &[Value] {
    series["runs"].as_array().map_or(&[], Vec::as_slice)
}

/// A quantile of a handler in each run, or its average, in nanoseconds, sorted.
fn values(series: &Value, handler: &str, quantile: Option<f64>) -> Result<Vec<f64>> {
    let of_run = |run: &Value| -> Result<f64> {
        let handlers = run["handlers"].as_array().context("no handlers")?;
        let found = handlers.iter().find(|found| found["name"] == handler);
        let found = found.with_context(|| format!("no {handler}"))?;
        if found["count"].as_u64() < Some(1_000) {
            bail!("{handler} was called {} times", found["count"]);
        }
        match quantile {
            None => Ok(number(&found["sum_ns"])? / number(&found["count"])?),
            Some(quantile) => bucket(found, quantile),
        }
    };
    let mut values = runs(series).iter().map(of_run).collect::<Result<Vec<f64>>>()?;
    values.sort_by(f64::total_cmp);
    ensure!(values.len() > 1, "{} runs", values.len());
    Ok(values)
}

/// Upper end of the bucket that the quantile lies in.
fn bucket(handler: &Value, quantile: f64) -> Result<f64> {
    let rank = (quantile * number(&handler["count"])?).ceil();
    let mut below = 0.0;
    for bucket in handler["histogram"]["buckets"].as_array().context("no buckets")? {
        below += number(&bucket[2])?;
        if below >= rank {
            return number(&bucket[1]);
        }
    }
    bail!("the buckets hold {below} calls");
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().with_context(|| format!("`{value}` is no number"))
}

fn median(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}
