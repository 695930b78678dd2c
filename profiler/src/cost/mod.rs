//! What the probes themselves add to each call of a handler on this machine.
//!
//! The same operations run without probes, with a pair of programs that do nothing (the floor that
//! the kernel's trampoline sets), with a pair that reads the clock and does nothing else (the limit, which
//! no measuring pair can go below), and with the measuring pair. The four take turns, so that a
//! machine that gets faster or slower does so for all of them, and what probes add is the difference within
//! a round. Rounds differ among themselves: a smaller difference cannot be distinguished from zero.

pub mod table;

use serde::Serialize;
use statrs::distribution::{ContinuousCDF as _, StudentsT};
use tokio::runtime::{Builder, Runtime};

use crate::error::{Failure, exit};
use crate::kernel::target::Target;
use crate::load::{BuiltinKind, time_builtin};
use crate::probe::{Options, Pair, Probes, Session as _};
use crate::recording::{Backend, Clock};
use crate::stats::median;

/// Confidence level of the bounds.
const CONFIDENCE: f64 = 0.95;

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
    /// Measurements of each kind; the figures are their medians.
    pub rounds: u32,
    /// Calls of the handler that one operation makes.
    pub hits_per_operation: f64,
    /// What the probes say a call of the handler takes on average.
    pub average_ns: f64,
    /// One operation without probes.
    pub bare_ns: f64,
    /// One operation with a pair of empty programs on the handler.
    pub empty_ns: f64,
    /// One operation with a pair on the handler that reads the clock and does nothing else.
    pub clock_ns: f64,
    /// One operation with the measuring pair on the handler.
    pub measured_ns: f64,
    /// Added to each call by the empty pair: the floor.
    pub floor_per_hit_ns: f64,
    /// Added to each call by the pair that reads the clock: the limit.
    pub limit_per_hit_ns: f64,
    /// Added to each call by the measuring pair.
    pub added_per_hit_ns: f64,
    /// `added_per_hit_ns` to `limit_per_hit_ns`; `null` where one of them cannot be distinguished from zero.
    pub ratio_to_limit: Option<f64>,
    /// `bare_ns`, `empty_ns`, `clock_ns` and `measured_ns` over the rounds.
    pub operation_spread: [Spread; 4],
    /// `floor_per_hit_ns`, `limit_per_hit_ns` and `added_per_hit_ns` over the rounds.
    pub added_spread: [Spread; 3],
}

/// One figure over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The median, in nanoseconds.
    pub median_ns: f64,
    /// The smallest of a round.
    pub min_ns: f64,
    /// The largest.
    pub max_ns: f64,
    /// 95 % confidence interval of the mean (Student's t); `null` with one round.
    pub bounds_ns: Option<[f64; 2]>,
}

impl Spread {
    /// Of the figure in each round; `None` without any.
    fn of(rounds: &[f64]) -> Option<Self> {
        let count = rounds.len() as f64;
        let mean = rounds.iter().sum::<f64>() / count;
        let squares: f64 = rounds.iter().map(|value| (value - mean).powi(2)).sum();
        let bounds_ns = StudentsT::new(0.0, 1.0, count - 1.0).ok().map(|student| {
            let error = (squares / (count - 1.0) / count).sqrt();
            let reach = error * student.inverse_cdf(f64::midpoint(CONFIDENCE, 1.0));
            [mean - reach, mean + reach]
        });
        Some(Self {
            median_ns: median(rounds)?,
            min_ns: rounds.iter().copied().reduce(f64::min)?,
            max_ns: rounds.iter().copied().reduce(f64::max)?,
            bounds_ns,
        })
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
fn ratio(added: &Spread, limit: &Spread) -> Option<f64> {
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

impl Round {
    /// One measurement of operations that `time` makes and times.
    fn measure(
        pair: Option<Pair>,
        target: &Target,
        backend: Option<Backend>,
        operations: u64,
        time: &dyn Fn(u64) -> Result<u64, Failure>,
    ) -> Result<Self, Failure> {
        let targets = std::slice::from_ref(target);
        let attach = |pair| {
            Probes::attach(targets, Options { backend, pair, keeper: true, ..Options::default() })
        };
        let mut session = pair.map(attach).transpose()?;
        // First calls fill caches and translate the guest's code.
        time(operations / 10 + 1)?;
        if let Some(session) = &mut session {
            session.drain()?;
        }
        let elapsed = time(operations)?;
        let mut round =
            Self { operation_ns: elapsed as f64 / operations as f64, ..Self::default() };
        if let Some(session) = &mut session {
            round.backend = session.backends().first().copied();
            for drained in session.drain()? {
                round.hits += drained.durations.len();
                round.sum_ns += drained.durations.sum_ns();
            }
        }
        Ok(round)
    }
}

fn spread(rounds: &[f64]) -> Result<Spread, Failure> {
    Spread::of(rounds).ok_or_else(|| Failure::new(exit::INTERNAL, "no round was measured"))
}

/// How long that many operations take, in nanoseconds.
fn time(runtime: &Runtime, kind: BuiltinKind, operations: u64) -> Result<u64, Failure> {
    let timed = runtime.block_on(time_builtin(kind, operations, 1));
    timed.map_err(|failure| Failure::new(exit::LOAD_FAILED, failure.to_string()))
}

/// Measures the cost of probes on `target` under the load `kind`.
///
/// # Errors
/// When the probes cannot be attached, the load fails, or the load does not call the handler.
pub fn measure(
    target: &Target,
    backend: Option<Backend>,
    kind: BuiltinKind,
    operations: u64,
    rounds: u32,
    clock: Clock,
) -> Result<Cost, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::new(exit::INTERNAL, format!("cannot start the runtime: {error}"))
    })?;
    let time = |operations| time(&runtime, kind, operations);
    let one = |pair| Round::measure(pair, target, backend, operations, &time);
    let [mut bare, mut empty, mut clock_read, mut measured] = [const { Vec::new() }; 4];
    let mut last = Round::default();
    for _ in 0..rounds.max(1) {
        bare.push(one(None)?.operation_ns);
        empty.push(one(Some(Pair::Empty))?.operation_ns);
        clock_read.push(one(Some(Pair::Clock))?.operation_ns);
        last = one(Some(Pair::Measuring))?;
        measured.push(last.operation_ns);
    }
    let Round { hits, sum_ns, backend: Some(backend), .. } = last else {
        return Err(Failure::new(exit::INTERNAL, "no backend measured"));
    };
    if hits == 0 {
        let text = format!("the {kind} load never called {}: choose another load", target.name);
        return Err(Failure::new(exit::NO_HITS, text));
    }
    let hits_per_operation = hits as f64 / operations as f64;
    let added = |with: &[f64]| -> Vec<f64> {
        let rounds = with.iter().zip(&bare);
        rounds.map(|(with, bare)| (with - bare) / hits_per_operation).collect()
    };
    let operation_spread =
        [spread(&bare)?, spread(&empty)?, spread(&clock_read)?, spread(&measured)?];
    let added_spread =
        [spread(&added(&empty))?, spread(&added(&clock_read))?, spread(&added(&measured))?];
    Ok(Cost {
        handler: target.name.clone(),
        backend,
        load: kind.to_string(),
        clock,
        operations,
        rounds: rounds.max(1),
        hits_per_operation,
        average_ns: sum_ns as f64 / hits as f64,
        bare_ns: operation_spread[0].median_ns,
        empty_ns: operation_spread[1].median_ns,
        clock_ns: operation_spread[2].median_ns,
        measured_ns: operation_spread[3].median_ns,
        floor_per_hit_ns: added_spread[0].median_ns,
        limit_per_hit_ns: added_spread[1].median_ns,
        added_per_hit_ns: added_spread[2].median_ns,
        ratio_to_limit: ratio(&added_spread[2], &added_spread[1]),
        operation_spread,
        added_spread,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_within_the_spread_of_rounds_is_doubted() {
        // Under virtual time rounds agree.
        let sure = Spread::of(&[456.8, 456.6, 457.0]).unwrap();
        assert_eq!((sure.median_ns, sure.min_ns, sure.max_ns), (456.8, 456.6, 457.0));
        let [low, high] = sure.bounds_ns.unwrap();
        // 4.303 times the standard error of 0.1155: Student's t of two degrees of freedom.
        assert!((low - 456.303).abs() < 0.001 && (high - 457.297).abs() < 0.001, "{low} {high}");
        assert_eq!(sure.doubt(), None);

        // By the wall clock of a busy machine they do not.
        let noise = Spread::of(&[352.4, -2_701.6, 1_900.0, 610.0, -80.0]).unwrap();
        let doubt = noise.doubt().unwrap();
        assert!(doubt.starts_with("its 95 % bounds are -"), "{doubt}");
        let negative = Spread::of(&[-2_700.0, -2_701.0, -2_702.0]).unwrap();
        assert!(negative.doubt().is_some(), "no probe makes a call cheaper");
        let one = Spread::of(&[456.8]).unwrap();
        assert_eq!(one.bounds_ns, None);
        assert_eq!(one.doubt().unwrap(), "one round has no spread");
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn a_ratio_is_that_of_two_figures_that_are_not_zero() {
        let limit = Spread::of(&[400.0, 400.5, 399.5]).unwrap();
        let added = Spread::of(&[460.0, 460.5, 459.5]).unwrap();
        let noise = Spread::of(&[-900.0, 460.0, 1_900.0]).unwrap();
        assert_eq!(ratio(&added, &limit), Some(1.15));
        assert_eq!(ratio(&noise, &limit), None);
        assert_eq!(ratio(&added, &noise), None);
    }
}
