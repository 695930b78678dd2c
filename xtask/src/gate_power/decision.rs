//! One decision: its boots, and what the gate says of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::cli::{GatePowerArgs, Measure, Slower};
use crate::process;

use super::{Change, HANDLERS, LOAD};

/// Written last: a folder without it is of a decision that was broken off.
const FACTS: &str = "decision.json";

/// The limit that single instructions are judged by, and the same driver once more.
const NONE_MORE: &str = "tp50=+0";

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
        let GatePowerArgs { operations, boots, rounds, measure, jobs, .. } = &self.args;
        let mut command = Command::new(&self.profiler);
        command.arg("lab").arg("--kernel").arg(&self.kernel);
        command.arg("--baseline").arg(base).arg("--candidate").arg(candidate);
        command.args(["--handler", HANDLERS, "--builtin", LOAD]);
        command.args(["--operations", &operations.to_string()]);
        command.args(["--boots", &boots.to_string(), "--repeat", &rounds.to_string()]);
        let how: &[&str] = match measure {
            Measure::Exact => &["--meter", "exact"],
            Measure::Virtual => &["--meter", "probes", "--clock", "virtual"],
            Measure::Wall => &["--meter", "probes", "--clock", "wall"],
        };
        command.args(how).args(["--no-cost", "--quiet"]);
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
    /// How it was measured: a name of [`Measure`].
    pub(super) measure: String,
    pub(super) handler: String,
    pub(super) slower: Slower,
    /// The limit that it was judged by, if it was not the default.
    pub(super) limit: Option<String>,
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
            "clock": lab.args.measure.name(),
            "handler": change.handler,
            "percent": match change.slower {
                Slower::Percent(percent) => percent,
                Slower::Instructions(_) => 0.0,
            },
            "instructions": match change.slower {
                Slower::Percent(_) => None,
                Slower::Instructions(count) => Some(count),
            },
            "noisy": noisy,
            "design": lab.design(),
            "seconds": started.elapsed().as_secs_f64(),
        });
        process::write(&place.join(FACTS), facts.to_string())
    }

    /// Lets the gate judge the runs in a folder: by its default limits, or for single instructions by `+0`. The same
    /// driver, where instructions were counted, is judged by both.
    pub(super) fn judge(profiler: &Path, place: &Path) -> Result<Vec<Self>> {
        let facts = process::read_json(&place.join(FACTS))?;
        let none_more = Some(NONE_MORE);
        let limits: &[Option<&str>] = match slower(&facts)? {
            Slower::Instructions(_) => &[none_more],
            Slower::Percent(0.0) if facts["clock"] == Measure::Exact.name() => &[None, none_more],
            Slower::Percent(_) => &[None],
        };
        limits.iter().map(|limit| Self::judge_by(profiler, place, &facts, *limit)).collect()
    }

    fn judge_by(profiler: &Path, place: &Path, facts: &Value, limit: Option<&str>) -> Result<Self> {
        let report = place.join("gate.json");
        let mut command = Command::new(profiler);
        command.arg("gate").arg(place.join("baseline.json")).arg(place.join("candidate.json"));
        command.arg("--json").arg(&report);
        command.args(limit.into_iter().flat_map(|limit| ["--max-regression", limit]));
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
        let mut decision = Self::of(facts, &process::read_json(&report)?)?;
        decision.limit = limit.map(str::to_owned);
        Ok(decision)
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
        let of_handler = |statistic: &str| {
            lines
                .iter()
                .find(|line| line["handler"] == handler.as_str() && line["statistic"] == statistic)
        };
        let measured = of_handler("avg")
            .or_else(|| of_handler("tp50"))
            .and_then(|line| line["change"]["percent"].as_f64());
        Ok(Self {
            measure: text(facts, "clock")?,
            slower: slower(facts)?,
            limit: None,
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

    /// Whether a handler was made slower.
    pub(super) fn is_slower(&self) -> bool {
        self.slower != Slower::Percent(0.0)
    }

    /// Whether a handler failed that is not slower.
    pub(super) fn is_false_alarm(&self) -> bool {
        self.failed.iter().any(|handler| !self.is_slower() || *handler != self.handler)
    }

    /// Whether every handler that is not slower passed.
    pub(super) fn others_passed(&self) -> bool {
        let slower = |handler: &String| self.is_slower() && *handler == self.handler;
        self.failed.iter().chain(&self.undecided).all(slower)
    }

    pub(super) fn words(&self) -> String {
        format!(
            "{}{} (failed: {}; undecided: {}), change {}, {:.0} s",
            self.limit.as_ref().map_or(String::new(), |limit| format!("by {limit} ")),
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
    for measure in Measure::ALL {
        let Ok(entries) = fs::read_dir(folder.join(measure.name())) else { continue };
        places.extend(
            entries.flatten().map(|entry| entry.path()).filter(|path| Decision::is_measured(path)),
        );
    }
    places.sort();
    let mut decisions = Vec::new();
    for place in places {
        decisions.extend(Decision::judge(profiler, &place)?);
    }
    Ok(decisions)
}

/// By how much a handler was made slower.
fn slower(facts: &Value) -> Result<Slower> {
    match facts["instructions"].as_u64() {
        Some(count) => Ok(Slower::Instructions(count)),
        None => facts["percent"].as_f64().map(Slower::Percent).context("no `percent`"),
    }
}

/// Whether the decision of a folder is about two times the same driver.
pub(super) fn is_of_the_same(place: &Path) -> Result<bool> {
    Ok(slower(&process::read_json(&place.join(FACTS))?)? == Slower::Percent(0.0))
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
