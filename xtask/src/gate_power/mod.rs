//! The gate's own record: decisions of `profiler gate` on pairs of builds that differ and cost the same, and on pairs of
//! which one is slower by a known amount, printed as rows of the table in `docs/gate-power.md`.
//!
//! The gate's reports are kept in `target/gate-power`, so an interrupted command goes on where it was.

mod table;
mod variant;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo;
use crate::cli::GatePowerArgs;
use crate::paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};

use table::Decision;
use variant::Driver;

/// The handler of the test module that is made slower, and the load whose operations it is part of.
const HANDLER: &str = "connect_syscall_handler";
const OPERATION: &str = "operation of connect";
const SERIES: Series = Series::V6_1;

/// Makes the decisions that are not there yet, and prints the row of each change.
///
/// # Errors
/// If there is a false alarm, or a slower handler was not found.
pub(crate) fn run(args: &GatePowerArgs) -> Result<()> {
    setup::ensure(&[setup::MODULE_BUILD, Part::kernel(&SERIES)])?;
    let profiler = cargo::build_profiler()?;
    let driver = Driver { args, folder: folder().join(&args.module) };
    // Two at once would build in the same trees.
    let _lock = setup::lock()?;
    let mut rows = table::HEAD.to_owned();
    let mut wrong = 0;
    for &(slower, count) in &args.decisions {
        ensure!(slower == 0 || args.driver.is_none(), "only the test module can be made slower");
        let reports = driver.folder.join(reports_of(args, slower));
        process::create_dir(&reports)?;
        let mut decisions = Vec::new();
        for seed in 0..count {
            let report = reports.join(format!("{seed}.json"));
            if !report.exists() {
                decide(&profiler, args, &driver.pair(seed, slower)?, &report)?;
            }
            let decision = Decision::of(slower, &process::read_json(&report)?)?;
            println!("gate-power: {}: {decision:?}", report.display());
            wrong += usize::from(decision.is_false_alarm || (slower > 0 && !decision.is_found));
            decisions.push(decision);
        }
        rows += &table::row(args, slower, &decisions);
    }
    println!(
        "Linux {}, {}\n\n{rows}",
        setup::kernel(SERIES)?.release,
        process::version(&profiler)?
    );
    ensure!(wrong == 0, "{wrong} decisions are wrong");
    Ok(())
}

fn folder() -> PathBuf {
    paths::target().join("gate-power")
}

/// The folder for reports of the same question.
fn reports_of(args: &GatePowerArgs, slower: u64) -> String {
    let handler = args.handler.as_deref().unwrap_or("all");
    let limit = args.max_regression.as_deref().unwrap_or("default");
    format!("reports {handler} {limit} {slower}")
}

/// Lets `profiler gate` decide on a pair of builds.
fn decide(
    profiler: &Path,
    args: &GatePowerArgs,
    [baseline, candidate]: &[PathBuf; 2],
    report: &Path,
) -> Result<()> {
    let json = folder().join("gate.json");
    let mut command = Command::new(profiler);
    command.arg("gate").arg("--baseline").arg(baseline).arg("--candidate").arg(candidate);
    command.arg("--kernel").arg(paths::kernel(SERIES)).arg("--json").arg(&json);
    // As CI does: a baseline is measured once.
    command.arg("--cache").arg(folder().join("cache"));
    // Builds of equal code would pass without a measurement.
    command.arg("--update-baseline").arg(folder().join("next.json"));
    command.args(args.agent.iter().flat_map(|agent| ["--agent", agent]));
    command.args(args.handler.iter().flat_map(|glob| ["--handler", glob]));
    command.args(args.max_regression.iter().flat_map(|limit| ["--max-regression", limit]));
    command.env_remove("GITHUB_STEP_SUMMARY").env_remove("GITHUB_ACTIONS");
    // Pass, fail, inconclusive: anything else is no decision.
    process::output_if(&mut command, &[0, 10, 11])?;
    Ok(process::rename(&json, report)?)
}
