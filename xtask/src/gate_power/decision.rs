//! One decision: its boots, and what the gate says of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::cli::{GatePowerArgs, PowerClock};
use crate::process;

use super::{Change, HANDLERS, LOAD};

/// Written last: a folder without it is of a decision that was broken off.
const FACTS: &str = "decision.json";

/// How runs are made.
#[derive(Debug, Clone)]
pub(super) struct Lab {
    pub(super) profiler: PathBuf,
    pub(super) kernel: PathBuf,
    pub(super) vng: PathBuf,
    pub(super) args: GatePowerArgs,
}

impl Lab {
    fn design(&self) -> String {
        let GatePowerArgs { boots, rounds, operations, .. } = self.args;
        let s = |count| if count == 1 { "" } else { "s" };
        format!(
            "{boots} boot{} with {rounds} round{} of ABBA, {operations} operations a run",
            s(boots),
            s(rounds),
        )
    }

    /// Runs both builds in turns; what was measured goes to `place`.
    pub(super) fn command(&self, place: &Path, base: &Path, candidate: &Path) -> Command {
        let GatePowerArgs { operations, boots, rounds, clock, jobs, .. } = &self.args;
        let mut command = Command::new(&self.profiler);
        command.arg("lab").arg("--kernel").arg(&self.kernel);
        command.arg("--baseline").arg(base).arg("--candidate").arg(candidate);
        command.args(["--handler", HANDLERS, "--builtin", LOAD]);
        command.args(["--operations", &operations.to_string()]);
        command.args(["--boots", &boots.to_string(), "--repeat", &rounds.to_string()]);
        command.args(["--clock", clock.name(), "--no-cost", "--quiet"]);
        if let Some(jobs) = jobs {
            command.args(["--jobs", &jobs.to_string()]);
        }
        command.arg("--vng").arg(&self.vng).arg("--out").arg(place);
        command
    }
}

/// What the gate said of the runs in one folder.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decision {
    pub(super) clock: String,
    pub(super) handler: String,
    pub(super) percent: f64,
    pub(super) noisy: bool,
    pub(super) design: String,
    /// Seconds that its boots took on the host.
    pub(super) seconds: f64,
    /// The gate's outcome, such as `fail`.
    pub(super) outcome: String,
    /// Handlers with a figure that failed.
    pub(super) failed: Vec<String>,
    /// Handlers with a figure that is undecided.
    pub(super) undecided: Vec<String>,
    /// The change of the handler's average, in percent, as measured.
    pub(super) measured: Option<f64>,
}

impl Decision {
    /// Whether the runs of a decision are there, all of them.
    pub(super) fn is_measured(place: &Path) -> bool {
        place.join(FACTS).exists()
    }

    /// Boots, and puts the runs into `place`.
    pub(super) fn measure(
        lab: &Lab,
        change: &Change,
        place: &Path,
        base: &Path,
        candidate: &Path,
        noisy: bool,
    ) -> Result<()> {
        process::empty_dir(place)?;
        let started = Instant::now();
        process::run_logged(&mut lab.command(place, base, candidate), &place.join("lab.log"))?;
        let facts = json!({
            "clock": lab.args.clock.name(),
            "handler": change.handler,
            "percent": change.percent,
            "noisy": noisy,
            "design": lab.design(),
            "seconds": started.elapsed().as_secs_f64(),
        });
        process::write(&place.join(FACTS), facts.to_string())
    }

    /// Lets the gate judge the runs in a folder.
    pub(super) fn judge(profiler: &Path, place: &Path) -> Result<Self> {
        let facts = process::read_json(&place.join(FACTS))?;
        let report = place.join("gate.json");
        let mut command = Command::new(profiler);
        command.arg("gate").arg(place.join("baseline.json")).arg(place.join("candidate.json"));
        command.arg("--json").arg(&report);
        command.env_remove("GITHUB_STEP_SUMMARY").env_remove("GITHUB_ACTIONS");
        let output = process::capture(&mut command)?;
        let code = output.status.code();
        // 0 pass, 10 fail, 11 inconclusive: a decision. Everything else is none.
        if !matches!(code, Some(0 | 10 | 11)) {
            bail!(
                "`{}` ended with {}: {}",
                process::text(&command),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim_end()
            );
        }
        Self::of(&facts, &process::read_json(&report)?)
    }

    fn of(facts: &Value, report: &Value) -> Result<Self> {
        let text = |value: &Value, key: &str| {
            value[key].as_str().map(str::to_owned).with_context(|| format!("no `{key}` in {value}"))
        };
        let number =
            |value: &Value, key: &str| value[key].as_f64().with_context(|| format!("no `{key}`"));
        let lines = report["lines"].as_array().context("no lines in the gate's report")?;
        let with = |verdicts: &[&str]| {
            let mut handlers: Vec<String> = lines
                .iter()
                .filter(|line| {
                    line["verdict"].as_str().is_some_and(|verdict| verdicts.contains(&verdict))
                })
                .filter_map(|line| line["handler"].as_str().map(str::to_owned))
                .collect();
            handlers.sort_unstable();
            handlers.dedup();
            handlers
        };
        let handler = text(facts, "handler")?;
        let measured = lines
            .iter()
            .find(|line| line["handler"] == handler.as_str() && line["statistic"] == "avg")
            .and_then(|line| line["change"]["percent"].as_f64());
        Ok(Self {
            clock: text(facts, "clock")?,
            percent: number(facts, "percent")?,
            noisy: facts["noisy"].as_bool().unwrap_or(false),
            design: text(facts, "design")?,
            seconds: number(facts, "seconds")?,
            outcome: text(report, "outcome")?,
            failed: with(&["fail"]),
            undecided: with(&["inconclusive", "insufficient", "vanished"]),
            measured,
            handler,
        })
    }

    /// Whether the gate failed the handler that is slower, and that one alone.
    pub(super) fn found(&self) -> bool {
        self.failed == [self.handler.clone()]
    }

    /// Whether a handler failed that is not slower.
    pub(super) fn is_false_alarm(&self) -> bool {
        self.failed.iter().any(|handler| self.percent == 0.0 || *handler != self.handler)
    }

    /// Whether every handler that is not slower passed.
    pub(super) fn others_passed(&self) -> bool {
        let slower = |handler: &String| self.percent > 0.0 && *handler == self.handler;
        self.failed.iter().chain(&self.undecided).all(slower)
    }

    pub(super) fn words(&self) -> String {
        format!(
            "{} (failed: {}; undecided: {}), average {}, {:.0} s",
            self.outcome,
            list(&self.failed),
            list(&self.undecided),
            self.measured.map_or("unknown".to_owned(), |percent| format!("{percent:+.3} %")),
            self.seconds
        )
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Every decision below a folder that was measured to its end.
pub(super) fn all(profiler: &Path, folder: &Path) -> Result<Vec<Decision>> {
    let mut places = Vec::new();
    for clock in [PowerClock::Virtual, PowerClock::Wall] {
        let Ok(entries) = fs::read_dir(folder.join(clock.name())) else { continue };
        places.extend(
            entries.flatten().map(|entry| entry.path()).filter(|path| Decision::is_measured(path)),
        );
    }
    places.sort();
    places.iter().map(|place| Decision::judge(profiler, place)).collect()
}

/// By how much a handler was made slower in the decision of a folder, in percent.
pub(super) fn percent(place: &Path) -> Result<f64> {
    process::read_json(&place.join(FACTS))?["percent"].as_f64().context("no percent")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(percent: f64, lines: &[(&str, &str)]) -> Decision {
        let lines: Vec<Value> = lines
            .iter()
            .map(|(handler, verdict)| {
                json!({"handler": handler, "verdict": verdict, "statistic": "avg", "change": {"percent": 1.5}})
            })
            .collect();
        let facts = json!({"clock": "virtual", "handler": "a", "percent": percent, "noisy": false,
            "design": "1 boot", "seconds": 60.5});
        Decision::of(&facts, &json!({"outcome": "fail", "lines": lines})).unwrap()
    }

    #[test]
    fn a_find_is_the_right_handler_and_no_other() {
        let found = decision(2.0, &[("a", "fail"), ("a", "fail"), ("b", "pass")]);
        assert!(found.found() && found.others_passed() && !found.is_false_alarm());
        assert_eq!(found.measured, Some(1.5));
        let too_many = decision(2.0, &[("a", "fail"), ("b", "fail")]);
        assert!(!too_many.found() && too_many.is_false_alarm() && !too_many.others_passed());
        let open = decision(2.0, &[("a", "fail"), ("b", "inconclusive")]);
        assert!(open.found() && !open.is_false_alarm() && !open.others_passed());
        let missed = decision(2.0, &[("a", "inconclusive"), ("b", "pass")]);
        assert!(!missed.found() && missed.others_passed());
        assert!(decision(0.0, &[("a", "fail")]).is_false_alarm());
        assert!(decision(0.0, &[("a", "pass"), ("b", "pass")]).others_passed());
    }
}
