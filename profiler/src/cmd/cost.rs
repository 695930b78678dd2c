//! `profiler cost`: what the probes themselves add to each call of a handler on this machine.
//!
//! The same operations run without probes, with a pair of programs that do nothing (the floor that
//! the kernel's trampoline sets), with a pair that reads the clock and does nothing else (the limit, which
//! no measuring pair can go below), and with the measuring pair. The four take turns, so that a
//! machine that gets faster or slower does so for all of them, and what probes add is the difference within
//! a round. Rounds differ among themselves: a smaller difference cannot be distinguished from zero.

use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde::Serialize;
use statrs::distribution::{ContinuousCDF as _, StudentsT};
use statrs::statistics::Statistics as _;

use profiler_base::atomic_file::OutputFile;
use profiler_base::error::{Failure, bail, exit};
use profiler_base::stats::median;
use profiler_kernel::privileges;
use profiler_kernel::target::{KernelFiles, Target};
use profiler_load::{BuiltinKind, BuiltinLoad, LoadFailure, LoadStatus, StopSignal};
use profiler_probe::{Options, Pair, Probes, Session as _};
use profiler_recording::{Backend, Clock};
use profiler_run::args::by_name;

use super::{save, to_stdout};

const EXAMPLES: &str = "\
Examples:
  profiler cost --module hids_driver --handler connect_syscall_entry_handler --builtin connect";

/// Arguments of `profiler cost`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CostArgs {
    /// Kernel module that holds the handler; without it, the handler is a function of the kernel image.
    #[arg(long, short)]
    pub module: Option<String>,
    /// The handler.
    #[arg(long, short = 'H', value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub handler: String,
    /// Built-in load that calls it.
    #[arg(long, value_name = "KIND", value_parser = by_name::<BuiltinKind>())]
    pub builtin: BuiltinKind,
    /// Backend whose cost is measured: see `profiler run --help`.
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// Operations in each measurement.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: u64,
    /// Rounds of measurements; medians over them are printed.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// What the machine's clock measures: see `profiler run --help`.
    #[arg(long, value_parser = by_name::<Clock>(), default_value_t = Clock::Wall)]
    pub clock: Clock,
    /// Write the figures as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Measures the cost and prints it.
///
/// # Errors
/// As [`measure`]; and when the output cannot be written.
pub fn run(args: &CostArgs) -> Result<(), Failure> {
    privileges::check()?;
    super::restore_tracefs();
    let handlers = [args.handler.clone()];
    let targets = KernelFiles::default().resolve(args.module.as_deref(), &handlers)?.targets;
    let [target] = targets.as_slice() else {
        bail!(USAGE, "`{}` matches several handlers: name one", args.handler);
    };
    let file = args.json.as_deref().map(OutputFile::open).transpose()?;
    let cost = measure(target, args)?;
    save(file, &cost)?;
    to_stdout(&cost.text())
}

/// Confidence level of the bounds.
const CONFIDENCE: f64 = 0.95;

/// What is put on the handler, with the name of an operation's time.
const OPERATIONS: [(&str, Option<Pair>); 4] = [
    ("one operation without probes", None),
    ("  with an empty pair", Some(Pair::Empty)),
    ("  with the clock read alone", Some(Pair::Clock)),
    ("  with the measuring pair", Some(Pair::Measuring)),
];

/// What each pair adds to a call.
const ADDED: [&str; 3] =
    ["added per hit, empty pair", "added per hit, clock alone", "added per hit, measuring pair"];

/// Times of one operation and what follows from them, in nanoseconds of `clock`. Under virtual
/// time a nanosecond is an instruction of the guest.
#[derive(Debug, Clone, Serialize)]
pub struct Cost {
    /// The handler that was probed.
    pub handler: String,
    /// How it was probed.
    pub backend: Backend,
    /// The operation that calls it.
    pub load: String,
    /// What a nanosecond is.
    pub clock: Clock,
    /// Operations in each measurement.
    pub operations: u64,
    /// Measurements of each kind.
    pub rounds: u32,
    /// Calls of the handler that one operation makes.
    pub hits_per_operation: f64,
    /// What the probes say a call of the handler takes on average.
    pub average_ns: f64,
    /// Median added to each call by the empty pair: the floor.
    pub floor_per_hit_ns: f64,
    /// By the pair that reads the clock: the limit.
    pub limit_per_hit_ns: f64,
    /// By the measuring pair.
    pub added_per_hit_ns: f64,
    /// `added_per_hit_ns` to `limit_per_hit_ns`; `null` where one of them cannot be distinguished from zero.
    pub ratio_to_limit: Option<f64>,
    /// An operation's times, then what is added to a call.
    pub figures: Vec<Figure>,
}

/// One figure over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// What it is.
    pub name: &'static str,
    /// The median, in nanoseconds.
    pub median_ns: f64,
    /// The smallest of a round.
    pub min_ns: f64,
    /// The largest.
    pub max_ns: f64,
    /// 95 % confidence interval of the mean (Student's t); `null` with one round.
    pub bounds_ns: Option<[f64; 2]>,
}

impl Figure {
    fn of(name: &'static str, rounds: &[f64]) -> Self {
        let count = rounds.len() as f64;
        let mean = rounds.mean();
        let bounds_ns = StudentsT::new(0.0, 1.0, count - 1.0).ok().map(|student| {
            let error = rounds.std_dev() / count.sqrt();
            let reach = error * student.inverse_cdf(f64::midpoint(CONFIDENCE, 1.0));
            [mean - reach, mean + reach]
        });
        Self {
            name,
            median_ns: median(rounds).unwrap_or(f64::NAN),
            min_ns: rounds.min(),
            max_ns: rounds.max(),
            bounds_ns,
        }
    }

    /// Why a cost cannot be distinguished from zero, if it cannot.
    fn doubt(&self) -> Option<String> {
        match self.bounds_ns {
            None => Some("one round has no spread".to_owned()),
            Some([low, high]) if low <= 0.0 => {
                Some(format!("its 95 % bounds are {low:.1} to {high:.1}"))
            }
            Some(_) => None,
        }
    }
}

/// What the measuring pair adds to what the limit adds; `None` where either may be zero.
fn ratio(added: &Figure, limit: &Figure) -> Option<f64> {
    let sure = added.doubt().is_none() && limit.doubt().is_none();
    sure.then(|| added.median_ns / limit.median_ns)
}

/// One measurement.
#[derive(Debug, Default)]
struct Round {
    operation_ns: f64,
    backend: Option<Backend>,
    hits: u64,
    sum_ns: u64,
}

/// Measures operations with a pair of programs on the handler, or without.
fn one_round(pair: Option<Pair>, target: &Target, args: &CostArgs) -> Result<Round, Failure> {
    let CostArgs { backend, builtin: kind, operations, .. } = *args;
    let targets = if pair.is_some() { std::slice::from_ref(target) } else { &[] };
    let pair = pair.unwrap_or_default();
    let options = Options { backend, pair, keeper: true, ..Options::default() };
    let mut session = Probes::attach(targets, options)?;
    // First calls fill caches and translate the guest's code.
    time(kind, operations / 10 + 1)?;
    session.drain()?;
    let operation_ns = time(kind, operations)? as f64 / operations as f64;
    let backend = session.handlers().first().map(|(_, backend)| *backend);
    let mut round = Round { operation_ns, backend, hits: 0, sum_ns: 0 };
    for drained in session.drain()? {
        round.hits += drained.durations.len();
        round.sum_ns += drained.durations.sum_ns();
    }
    Ok(round)
}

/// How long that many operations take, from the start of the first to the end of the last, in nanoseconds.
///
/// # Errors
/// If the load fails, or any operation does: one that fails early would take less time.
fn time(kind: BuiltinKind, operations: u64) -> Result<u64, Failure> {
    let load = BuiltinLoad { operations: Some(operations), ..BuiltinLoad::new(kind) };
    let outcome = load.run(&StopSignal::new());
    let why = match (outcome.status, outcome.errors.first()) {
        (LoadStatus::Failed(failure), _) => failure.to_string(),
        (_, Some(error)) => {
            let text = format!("operations of the load failed: {}", error.first);
            LoadFailure::BrokeOff { text }.to_string()
        }
        _ => return Ok(outcome.elapsed_ns),
    };
    Err(Failure::new(exit::LOAD_FAILED, why))
}

/// Measures the cost of probes on `target`, which the arguments name.
///
/// # Errors
/// When the probes cannot be attached, the load fails, or the load does not call the handler.
pub fn measure(target: &Target, args: &CostArgs) -> Result<Cost, Failure> {
    let CostArgs { builtin, operations, rounds, clock, .. } = *args;
    let mut times = [const { Vec::new() }; OPERATIONS.len()];
    let mut last = Round::default();
    for _ in 0..rounds {
        for (times, (_, pair)) in times.iter_mut().zip(OPERATIONS) {
            last = one_round(pair, target, args)?;
            times.push(last.operation_ns);
        }
    }
    let Round { hits, sum_ns, backend: Some(backend), .. } = last else {
        return Err(Failure::new(exit::INTERNAL, "no backend measured"));
    };
    if hits == 0 {
        let text = format!("the {builtin} load never called {}: choose another load", target.name);
        return Err(Failure::new(exit::NO_HITS, text));
    }
    let hits_per_operation = hits as f64 / operations as f64;
    let [bare, with @ ..] = &times;
    let added: [Figure; ADDED.len()] = std::array::from_fn(|at| {
        let differences = with[at].iter().zip(bare).map(|(with, bare)| with - bare);
        let of_calls: Vec<f64> = differences.map(|more| more / hits_per_operation).collect();
        Figure::of(ADDED[at], &of_calls)
    });
    let [floor, limit, measuring] = &added;
    let operation = OPERATIONS.into_iter().zip(&times).map(|((name, _), of)| Figure::of(name, of));
    Ok(Cost {
        handler: target.name.clone(),
        backend,
        load: builtin.to_string(),
        clock,
        operations,
        rounds,
        hits_per_operation,
        average_ns: sum_ns as f64 / hits as f64,
        floor_per_hit_ns: floor.median_ns,
        limit_per_hit_ns: limit.median_ns,
        added_per_hit_ns: measuring.median_ns,
        ratio_to_limit: ratio(measuring, limit),
        figures: operation.chain(added.clone()).collect(),
    })
}

impl Cost {
    /// The table for people, and a warning for each figure that may be zero.
    pub fn text(&self) -> String {
        let Self { handler, backend, load, operations, rounds, hits_per_operation, .. } = self;
        let mut text = format!(
            "{handler} by {backend} under {load}: {operations} operations, {rounds} rounds, medians, \
             {hits_per_operation} hits an operation\n{:<30} {:>10} {:>10} {:>10}\n",
            "", "median", "smallest", "largest"
        );
        for Figure { name, median_ns, min_ns, max_ns, .. } in &self.figures {
            text.push_str(&format!("{name:<30} {median_ns:>10.1} {min_ns:>10.1} {max_ns:>10.1}\n"));
        }
        let unit = match self.clock {
            Clock::Wall => "ns",
            Clock::Virtual => "instructions (ns of the virtual clock)",
        };
        let name = "average that it measures";
        text.push_str(&format!("{name:<30} {:>10.1}\nin {unit}\n", self.average_ns));
        if let Some(ratio) = self.ratio_to_limit {
            text.push_str(&format!(
                "floor (empty pair) {:.1}, limit (clock alone) {:.1}, measuring pair {:.1}: {ratio:.3} times the limit\n",
                self.floor_per_hit_ns, self.limit_per_hit_ns, self.added_per_hit_ns
            ));
        }
        for figure in self.figures.iter().skip(OPERATIONS.len()) {
            if let Some(doubt) = figure.doubt() {
                text.push_str(&format!(
                    "warning: {}: cannot be distinguished from zero: {doubt}; use more --rounds or \
                     --operations, and keep the machine otherwise idle\n",
                    figure.name
                ));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(rounds: &[f64]) -> Figure {
        Figure::of("it", rounds)
    }

    #[test]
    fn what_is_within_the_spread_of_rounds_is_doubted() {
        // Under virtual time rounds agree.
        let sure = figure(&[456.8, 456.6, 457.0]);
        assert_eq!((sure.median_ns, sure.min_ns, sure.max_ns), (456.8, 456.6, 457.0));
        let [low, high] = sure.bounds_ns.unwrap();
        // 4.303 times the standard error of 0.1155: Student's t of two degrees of freedom.
        assert!((low - 456.303).abs() < 0.001 && (high - 457.297).abs() < 0.001, "{low} {high}");
        assert_eq!(sure.doubt(), None);

        // By the wall clock of a busy machine they do not.
        let noise = figure(&[352.4, -2_701.6, 1_900.0, 610.0, -80.0]);
        let doubt = noise.doubt().unwrap();
        assert!(doubt.starts_with("its 95 % bounds are -"), "{doubt}");
        let negative = figure(&[-2_700.0, -2_701.0, -2_702.0]);
        assert!(negative.doubt().is_some(), "no probe makes a call cheaper");
        let one = figure(&[456.8]);
        assert_eq!(one.bounds_ns, None);
        assert_eq!(one.doubt().unwrap(), "one round has no spread");
    }

    #[test]
    fn a_ratio_is_that_of_two_figures_that_are_not_zero() {
        let limit = figure(&[400.0, 400.5, 399.5]);
        let added = figure(&[460.0, 460.5, 459.5]);
        let noise = figure(&[-900.0, 460.0, 1_900.0]);
        assert_eq!(ratio(&added, &limit), Some(1.15));
        assert_eq!(ratio(&noise, &limit), None);
        assert_eq!(ratio(&added, &noise), None);
    }

    #[test]
    fn the_table_says_when_a_figure_may_be_zero() {
        let figures = OPERATIONS.into_iter().zip([9_000.0, 9_352.4, 9_444.6, 6_298.4]);
        let figures = figures.map(|((name, _), ns)| Figure::of(name, &[ns; 3]));
        let added = [[352.0, 352.4, 353.0], [444.5, 444.6, 444.7], [-2_701.6, 900.0, -4_000.0]];
        let added = ADDED.into_iter().zip(added).map(|(name, ns)| Figure::of(name, &ns));
        let mut cost = Cost {
            handler: "connect_syscall_handler".to_owned(),
            backend: Backend::Fentry,
            load: "connect".to_owned(),
            clock: Clock::Wall,
            operations: 20_000,
            rounds: 3,
            hits_per_operation: 1.0,
            average_ns: 800.0,
            floor_per_hit_ns: 352.4,
            limit_per_hit_ns: 444.6,
            added_per_hit_ns: -2_701.6,
            ratio_to_limit: None,
            figures: figures.chain(added).collect(),
        };
        insta::assert_snapshot!(cost.text());

        cost.figures[6] = Figure::of(ADDED[2], &[511.0, 511.29, 512.0]);
        cost.added_per_hit_ns = 511.29;
        cost.ratio_to_limit = Some(1.15);
        let text = cost.text();
        let line = "floor (empty pair) 352.4, limit (clock alone) 444.6, measuring pair 511.3: 1.150 times the limit\n";
        assert!(text.contains(line) && !text.contains("warning"), "{text}");
    }
}
