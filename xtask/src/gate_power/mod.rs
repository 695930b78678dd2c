//! The gate's own record: decisions of `profiler gate` on pairs of builds that differ and cost the same, and on pairs of
//! which one is slower by a known amount, written to a table in `docs/gate-power.md`.
//!
//! Decisions are kept in `target/gate-power`, so an interrupted command goes on where it was.

mod document;
mod variant;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cargo;
use crate::cli::GatePowerArgs;
use crate::paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};

use variant::Driver;

pub(crate) use document::machine;

/// The handler of the test module that is made slower, and the load whose operations it is part of.
const HANDLER: &str = "connect_syscall_handler";
const OPERATION: &str = "operation of connect";
const SERIES: Series = Series::V6_1;

/// One decision, as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Decision {
    /// What was asked: decisions that have it in common are one row.
    #[serde(flatten)]
    kind: Kind,
    /// Number of the pair of builds.
    seed: u64,
    /// Whether the slower handler failed.
    found: bool,
    /// What failed though it is not slower.
    false_alarms: Vec<String>,
    /// The gate's outcome, such as `pass`.
    outcome: String,
    /// The most placements that a figure was decided by.
    placements: u64,
    /// The change of [`HANDLER`] in instructions, if it was judged.
    change: Option<f64>,
    /// The largest change of any figure to the worse, in percent.
    largest: Option<f64>,
    /// Seconds on this machine, without the builds.
    seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Kind {
    /// The module's file.
    driver: String,
    /// `--handler` of the gate; none: all.
    handler: Option<String>,
    /// `--max-regression` of the gate; none: its defaults.
    limit: Option<String>,
    /// Instructions more in each call of [`HANDLER`]; 0: builds of equal cost.
    slower: u64,
}

/// Makes the decisions that are not there yet, and writes the table of all. True if there is no false alarm, and each slower
/// handler was found.
pub(crate) fn run(args: &GatePowerArgs) -> Result<bool> {
    setup::ensure(&[setup::MODULE_BUILD, Part::kernel(&SERIES)])?;
    let profiler = cargo::build_profiler()?;
    let driver = Driver { args, folder: paths::target().join("gate-power").join(&args.module) };
    // Two at once would build in the same trees.
    let _lock = setup::lock()?;
    let kept = paths::target().join("gate-power/decisions.jsonl");
    let mut decisions = read(&kept)?;
    for &(slower, count) in &args.decisions {
        ensure!(slower == 0 || args.driver.is_none(), "only the test module can be made slower");
        let kind = Kind {
            driver: args.module.clone(),
            handler: args.handler.clone(),
            limit: args.max_regression.clone(),
            slower,
        };
        for seed in 0..count {
            if decisions.iter().any(|one| one.kind == kind && one.seed == seed) {
                continue;
            }
            let builds = driver.pair(seed, slower)?;
            let agent = args.agent.as_deref();
            let decision = decide((&profiler, agent), kind.clone(), seed, &builds)?;
            println!("gate-power: {}", serde_json::to_string(&decision)?);
            keep(&kept, &decision)?;
            decisions.push(decision);
        }
    }
    let document = paths::root().join("docs/gate-power.md");
    let date = process::stdout(Command::new("date").args(["-u", "+%F", "-r"]).arg(&kept))?;
    let old = process::read(&document)?;
    let text = document::render(&old, &profiler, date.trim(), &decisions)?;
    process::write(&document, text)?;
    println!("gate-power: {} decisions, {}", decisions.len(), document.display());
    Ok(decisions
        .iter()
        .all(|one| one.false_alarms.is_empty() && (one.found || one.kind.slower == 0)))
}

impl Decision {
    fn of(kind: Kind, seed: u64, seconds: f64, report: &Value) -> Result<Self> {
        let lines = report["lines"].as_array().context("no lines in the gate's report")?;
        let failing = lines.iter().filter(|line| line["verdict"] == "fail");
        let mut failed: Vec<String> =
            failing.map(|line| line["handler"].as_str().unwrap_or_default().to_owned()).collect();
        failed.dedup();
        let found = kind.slower > 0 && failed.iter().any(|name| name == HANDLER);
        if kind.slower > 0 {
            failed.retain(|name| name != HANDLER && name != OPERATION);
        }
        // The average, or the only cost that a limit judges: the number of calls is none.
        let mut of_handler = lines.iter().filter(|line| line["handler"] == HANDLER);
        let cost =
            of_handler.find(|line| line["statistic"] == "avg" || line["statistic"] == "tp50");
        let changes = lines.iter().map(|line| &line["change"]);
        let placements = changes.clone().filter_map(|change| change["placements"].as_u64()).max();
        let largest = changes.filter_map(|change| change["percent"].as_f64());
        Ok(Self {
            seed,
            found,
            false_alarms: failed,
            outcome: report["outcome"].as_str().context("no outcome")?.to_owned(),
            placements: placements.unwrap_or(0),
            change: cost.and_then(|line| line["change"]["change"].as_f64()),
            largest: largest.max_by(f64::total_cmp),
            seconds,
            kind,
        })
    }
}

/// Lets `profiler gate`, with an agent if there is one, decide on a pair of builds.
fn decide(
    (profiler, agent): (&Path, Option<&str>),
    kind: Kind,
    seed: u64,
    [baseline, candidate]: &[PathBuf; 2],
) -> Result<Decision> {
    let folder = paths::target().join("gate-power");
    let json = folder.join("gate.json");
    let mut command = Command::new(profiler);
    command.arg("gate").arg("--baseline").arg(baseline).arg("--candidate").arg(candidate);
    command.arg("--kernel").arg(paths::kernel(SERIES)).arg("--json").arg(&json);
    // As CI does: a baseline is measured once.
    command.arg("--cache").arg(folder.join("cache"));
    // Builds of equal code would pass without a measurement.
    command.arg("--update-baseline").arg(folder.join("next.json"));
    command.args(agent.iter().flat_map(|agent| ["--agent", agent]));
    command.args(kind.handler.iter().flat_map(|glob| ["--handler", glob]));
    command.args(kind.limit.iter().flat_map(|limit| ["--max-regression", limit]));
    command.env_remove("GITHUB_STEP_SUMMARY").env_remove("GITHUB_ACTIONS");
    let started = Instant::now();
    // Pass, fail, inconclusive: anything else is no decision.
    process::stdout_if(&mut command, &[0, 10, 11])?;
    let seconds = started.elapsed().as_secs_f64();
    let decision = Decision::of(kind, seed, seconds, &process::read_json(&json)?)?;
    if !decision.false_alarms.is_empty() {
        // The builds stay, too.
        let kept = candidate.with_extension("gate.json");
        process::copy(&json, &kept)?;
        println!("gate-power: a false alarm: {}", kept.display());
    }
    Ok(decision)
}

fn read(kept: &Path) -> Result<Vec<Decision>> {
    let text = if kept.exists() { process::read(kept)? } else { String::new() };
    let decisions = serde_json::Deserializer::from_str(&text).into_iter();
    decisions
        .collect::<Result<_, _>>()
        .with_context(|| format!("{} has another form; remove it to start again", kept.display()))
}

fn keep(kept: &Path, decision: &Decision) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(kept)?;
    writeln!(file, "{}", serde_json::to_string(decision)?)
        .with_context(|| format!("cannot write {}", kept.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(slower: u64) -> Kind {
        Kind { driver: variant::MODULE.to_owned(), handler: None, limit: None, slower }
    }

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
        let slower = Decision::of(kind(59), 0, 1.0, &report).unwrap();
        assert!(slower.found && slower.false_alarms.is_empty());
        assert_eq!((slower.placements, slower.change), (3, Some(59.0)));
        assert_eq!(slower.largest, Some(1.008));
        let equal = Decision::of(kind(0), 0, 1.0, &report).unwrap();
        assert!(!equal.found && equal.false_alarms == [HANDLER, OPERATION]);
    }
}
