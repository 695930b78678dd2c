//! Arguments of `profiler gate`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::compare::{Format, SidesArgs};
use super::{GuestArgs, SUBJECT};
use profiler_verdict::{Amount, Budget, Limits, parse_share};

const EXAMPLES: &str = "\
Exit codes: 0 pass, 10 fail, 11 inconclusive, 12 not comparable, 13 too few runs to ever fail.

Examples:
  # two builds of a driver: all is chosen, measured in VMs, decided and explained
  profiler gate base.ko head.ko
  # what that would do
  profiler gate --baseline base.ko --candidate head.ko --plan
  # two versions of an agent, by its BPF programs
  profiler gate --kernel 6.1 'run: ./agent-1.4' 'run: ./agent-1.5' --agent-file agent.yaml
  # an A/B in the lab, with the limits of its clock
  profiler gate base.json candidate.json
  # limits of one's own, an absolute budget, and a report for the CI
  profiler gate base.json candidate.json --max-regression 'tp99=10%,avg=5%' \\
      --budget 'connect_*:tp99<2us' --junit gate.xml --markdown gate.md
  # twenty steps of 0.45 % each pass; together they do not
  profiler gate base.ko head.ko --release v1.7.ko --release-limit 2%
  # the driver may cost a connect 3000 instructions, handlers and all around them
  profiler gate --baseline base.ko --candidate head.ko --budget 'connect:<3000'
  # the baseline in the repository moves on when the gate passes
  profiler gate baseline.json candidate.json --update-baseline baseline.json";

/// Arguments of `profiler gate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("compared").args(["old", "base"]).multiple(true))]
pub struct GateArgs {
    /// The recordings, or two builds. The baseline may be left out if there is a budget.
    #[command(flatten)]
    pub sides: SidesArgs,
    /// Two builds to measure, in place of recordings.
    #[command(flatten)]
    pub builds: BuildsArgs,
    /// Rule file: limits, floors and budgets, also for single handlers.
    #[arg(long, short, value_name = "gate.toml")]
    pub config: Option<PathBuf>,
    /// Limits: how much slower a handler may become, such as 'tp99=10%,avg=5%', or 'tp50=+5' in instructions and
    /// 'tp50=+20ns'; figures that are not named are not judged [default: 0.5% for avg, tp90, tp95 and tp99
    /// under virtual time, and for tp50 if instructions were counted; on the wall clock with
    /// sides in turns avg=10%,tp90=10%,tp95=15%,tp99=25%, else twice that].
    #[arg(long, value_name = "LIMITS")]
    pub max_regression: Option<Limits>,
    /// Absolute bound on the candidate, such as 'connect_*:tp99<2us' or 'connect_*:tp50<900 instructions'; for a
    /// load, such as 'connect:<3000', on the instructions that the driver costs an operation (repeatable).
    #[arg(long, value_name = "BUDGET")]
    pub budget: Vec<Budget>,
    /// Floor: the smallest change that may fail, such as 50ns or '2 instructions' [default: 4 instructions where
    /// they were counted, else 1ns under virtual time, 20ns on the wall clock]; percentiles add the
    /// width of the histogram's bucket. A limit such as 'tp50=+5' has none.
    #[arg(long, value_name = "AMOUNT")]
    pub floor: Option<Amount>,
    /// Largest share of a handler's calls that a run may have lost [default: 0.1%].
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub max_loss: Option<f64>,
    /// Bound on the probability of a false alarm over all comparisons [default: 0.05].
    #[arg(long, value_name = "P", value_parser = alpha)]
    pub alpha: Option<f64>,
    /// Accept handlers that have vanished; without it they make the gate inconclusive.
    #[arg(long)]
    pub allow_vanished: bool,
    /// Judge the candidate beside the last release, too: a build, or counted recordings of it such as a stored baseline
    /// (repeatable: one for each kernel). So small steps that each pass do not add up unseen.
    #[arg(long, value_name = "FILE")]
    pub release: Vec<PathBuf>,
    /// How much slower than the release each figure may be.
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "2%", requires = "release")]
    pub release_limit: f64,
    /// Accept hooks that the candidate registers in addition, by handler or place (repeatable); without it those that no
    /// load reached make the gate inconclusive.
    #[arg(long, value_name = "NAME|GLOB")]
    pub accept_new: Vec<glob::Pattern>,
    /// Fail if a hook was reached by no load.
    #[arg(long)]
    pub require_reached: bool,
    /// Write the candidate's runs to this file as the next baseline, on a pass only.
    #[arg(long, value_name = "FILE", conflicts_with = "changed_only")]
    pub update_baseline: Option<PathBuf>,
    /// Format of standard output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Write everything as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write JUnit XML to this file.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write Markdown to this file; it is also appended to the file that $GITHUB_STEP_SUMMARY names.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write a page to this file: the decision, and by how much handlers changed.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print annotations for GitHub Actions after the table; the default where $GITHUB_ACTIONS is true.
    #[arg(long)]
    pub annotations: bool,
}

/// Two builds of a driver, which are measured first.
#[derive(Debug, Args)]
#[command(next_help_heading = "Two builds")]
pub struct BuildsArgs {
    /// The driver before the change (repeatable: one for each kernel), or a program whose BPF programs are measured, as
    /// `run: COMMAND`: in place of recordings, both builds are measured in VMs. Instructions are counted as `profiler lab` does.
    #[arg(long = "baseline", value_name = SUBJECT, requires = "new", conflicts_with_all = ["base", "candidate"])]
    pub old: Vec<PathBuf>,
    /// The same after the change.
    #[arg(long = "candidate", value_name = SUBJECT, requires = "old")]
    pub new: Vec<PathBuf>,
    /// Kernel to boot, as for `profiler lab` (repeatable) [default: the version that the driver was built for].
    #[arg(long, value_name = "FILE|FOLDER|VERSION", requires = "compared")]
    pub kernel: Vec<String>,
    /// Handler to judge, by name or glob (repeatable) [default: the functions that the driver gives to the kernel].
    #[arg(long = "handler", short = 'H', value_name = "NAME|GLOB", requires = "compared")]
    pub handlers: Vec<glob::Pattern>,
    /// Print what would be measured, and measure nothing.
    #[arg(long, requires = "compared")]
    pub plan: bool,
    /// Leave out the loads that run no function that differs between the builds; of general loads the candidate is measured only
    /// where the baseline called one that differs. Builds whose code and data are equal pass
    /// without a measurement in any case.
    #[arg(long, requires = "compared")]
    pub changed_only: bool,
    /// Further parameters of the driver, as insmod takes them.
    #[arg(long, value_name = "NAME=VALUE ...", requires = "compared", default_value = "")]
    pub module_params: String,
    /// Further parameters of the baseline alone.
    #[arg(long, value_name = "NAME=VALUE ...", requires = "compared", default_value = "")]
    pub baseline_params: String,
    /// Further parameters of the candidate alone, such as those of a hook that is new.
    #[arg(long, value_name = "NAME=VALUE ...", requires = "compared", default_value = "")]
    pub candidate_params: String,
    /// Keep the recordings in this folder: baseline.json and candidate.json; with several kernels, in a folder for
    /// each.
    #[arg(long, value_name = "FOLDER", requires = "compared")]
    pub out: Option<PathBuf>,
    /// Keep the baseline's runs in this folder, and take them from there while the same file is the baseline: then the
    /// candidate is measured alone, and only what seems to differ is measured of both.
    #[arg(long, value_name = "FOLDER", requires = "compared")]
    pub cache: Option<PathBuf>,
    /// What runs in the guests beside that, and what is kept and said of them.
    #[command(flatten)]
    pub guests: GuestArgs,
}

impl BuildsArgs {
    /// An option that was given and speaks of builds alone.
    pub fn option(&self) -> Option<&'static str> {
        let given = [
            ("--kernel", !self.kernel.is_empty()),
            ("--handler", !self.handlers.is_empty()),
            ("--plan", self.plan),
            ("--changed-only", self.changed_only),
            ("--module-params", !self.module_params.is_empty()),
            ("--baseline-params", !self.baseline_params.is_empty()),
            ("--candidate-params", !self.candidate_params.is_empty()),
            ("--agent", self.guests.agent.agent.is_some()),
            ("--agent-file", !self.guests.agent.agent_file.is_empty()),
            ("--out", self.out.is_some()),
            ("--cache", self.cache.is_some()),
            ("--logs", self.guests.logs.is_some()),
        ];
        given.into_iter().find_map(|(name, is_given)| is_given.then_some(name))
    }
}

fn alpha(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(alpha) if alpha > 0.0 && alpha <= 0.5 => Ok(alpha),
        _ => Err(format!("invalid alpha `{text}`: give a probability above 0, at most 0.5")),
    }
}
