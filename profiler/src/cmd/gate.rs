//! `profiler gate`: decides whether the candidate is slower than it may be.

mod output;

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use profiler_base::error::{Failure, bail};
use profiler_base::progress::Progress;
use profiler_export::gate::conclusion;
use profiler_export::verdict::{Evidence, GateReport};
use profiler_lab as lab;
use profiler_lab::gate::{Options, Planned};
use profiler_lab::subject::Subject;
use profiler_run::args::{GuestArgs, SUBJECT};
use profiler_verdict::{Amount, Budget, HookReport, Limits, Rule, Run, parse_share};

use super::compare::Format;
use super::sides::{self, Files, SidesArgs, check_parameters, is_build, read};
use super::to_stdout;
use output::Outputs;

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

/// See the [command line](GateArgs). All outputs are written whatever the outcome, except the new
/// baseline, which needs a pass.
///
/// # Errors
/// With the outcome's exit code unless it is a pass; or if a file is not a valid recording or rule, or
/// an output cannot be written.
pub fn run(args: &GateArgs) -> Result<(), Failure> {
    let rule = rule(args)?;
    let (files, are_builds) = judged(args, &rule)?;
    let outputs = (!args.builds.plan).then(|| Outputs::open(args)).transpose()?;
    let release = if release_builds(args).is_empty() { read(&args.release)? } else { Vec::new() };
    let evidence = match are_builds {
        true => of_builds(args, files, rule)?,
        false => Some(of_recordings(&args.sides, files, rule)?),
    };
    let Some((outputs, mut evidence)) = outputs.zip(evidence) else { return Ok(()) };
    if !release.is_empty() {
        let (candidate, rule) = (evidence.runs[1].clone(), evidence.rule.beside_release());
        evidence.release = Some(Box::new(of_runs(&args.sides, [release, candidate], rule)));
    }
    let report = GateReport::of(&evidence);
    let candidate = std::mem::take(&mut evidence.runs[1]);
    // Recordings are large.
    drop(evidence);
    outputs.write(&report, candidate)
}

/// The rule of the file, overridden by the command line.
fn rule(args: &GateArgs) -> Result<Rule, Failure> {
    let file = args.config.as_deref().map_or(Ok(Rule::default()), Rule::read)?;
    Ok(Rule {
        limits: args.max_regression.clone().or(file.limits),
        max_loss: args.max_loss.unwrap_or(file.max_loss),
        floor: args.floor.or(file.floor),
        alpha: args.alpha.unwrap_or(file.alpha),
        allow_vanished: file.allow_vanished || args.allow_vanished,
        accept_new: [file.accept_new, args.accept_new.clone()].concat(),
        require_reached: file.require_reached || args.require_reached,
        budgets: [file.budgets, args.budget.clone()].concat(),
        handlers: file.handlers,
        release_limit: args.release_limit,
    })
}

/// What is named by the arguments, and whether that is builds rather than recordings.
fn judged<'a>(args: &'a GateArgs, rule: &Rule) -> Result<(Files<'a>, bool), Failure> {
    let BuildsArgs { old, new, .. } = &args.builds;
    if !old.is_empty() {
        return Ok(([old, new], true));
    }
    let files = sides::files(&args.sides, rule.budgets.is_empty())?;
    let are_builds = sides::are_builds(files)?;
    match (are_builds, args.builds.option()) {
        (false, Some(option)) => bail!(
            USAGE,
            "{option} is for two builds: name .ko files or `run: COMMAND` in place of recordings"
        ),
        (false, None) if !release_builds(args).is_empty() => bail!(
            USAGE,
            "the release is a build, and what is judged are recordings: name recordings of the release"
        ),
        (true, _) if files[0].is_empty() => bail!(
            USAGE,
            "a build is judged beside another: name the baseline's .ko file, --, and the candidate's"
        ),
        _ => Ok((files, are_builds)),
    }
}

/// The last release, if it is builds and not recordings.
fn release_builds(args: &GateArgs) -> &[PathBuf] {
    if args.release.iter().all(|file| is_build(file)) { &args.release } else { &[] }
}

fn of_recordings(args: &SidesArgs, files: Files<'_>, rule: Rule) -> Result<Evidence, Failure> {
    let runs = sides::read_sides(files)?;
    let [old, new] =
        runs.each_ref().map(|runs| runs.iter().map(|run| &run.recording).collect::<Vec<_>>());
    // Of several kernels each has its own.
    let registered = HookReport::of(&old, &new, &rule, &|_| true, &|_| None)
        .filter(|registered| !registered.is_same() || rule.require_reached);
    Ok(Evidence { registered, ..of_runs(args, runs, rule) })
}

/// What is known of recordings by themselves.
fn of_runs(args: &SidesArgs, runs: [Vec<Run>; 2], rule: Rule) -> Evidence {
    let (allowed, independent) = (args.allow_different.clone(), args.independent_runs);
    Evidence { runs, allowed, independent, rule, ..Evidence::default() }
}

/// Measures two builds; `None` if what that takes was printed alone.
fn of_builds(args: &GateArgs, files: Files<'_>, rule: Rule) -> Result<Option<Evidence>, Failure> {
    let options = options(args, files)?;
    let changed = options.changed();
    if let Some(evidence) = options.equal(changed.as_ref(), &rule) {
        if !args.builds.plan {
            return Ok(Some(evidence));
        }
        let report = GateReport::of(&evidence);
        return to_stdout(&(conclusion(report.outcome, &report.summary) + "\n")).map(|()| None);
    }
    let planned = Planned::of(options, changed)?;
    let plan = planned.text();
    if args.builds.plan {
        return to_stdout(&plan).map(|()| None);
    }
    let mut progress = Progress::new(args.builds.guests.quiet);
    plan.lines().for_each(|line| progress.say(line));
    planned.measure(rule, &mut progress).map(Some)
}

fn options(args: &GateArgs, files: Files<'_>) -> Result<Options, Failure> {
    let BuildsArgs { guests, module_params, baseline_params, candidate_params, .. } = &args.builds;
    let given = lab::Options::given(files, guests)?;
    let lab = lab::Options { kernels: args.builds.kernel.clone(), ..given };
    check_parameters(&lab, module_params, [baseline_params, candidate_params])?;
    let release = Subject::all(release_builds(args), &guests.agent.agent_file)?;
    release.iter().try_for_each(|subject| subject.check_parameters(module_params))?;
    Ok(Options {
        lab,
        handlers: args.builds.handlers.clone(),
        module_params: module_params.clone(),
        own_params: [baseline_params.clone(), candidate_params.clone()],
        out: args.builds.out.clone(),
        cache: args.builds.cache.clone(),
        changed_only: args.builds.changed_only,
        allowed: args.sides.allow_different.clone(),
        release,
        has_release: !args.release.is_empty() || args.update_baseline.is_some(),
    })
}
