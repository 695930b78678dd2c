//! `profiler cost`: what the probes themselves add to each call of a handler on this machine.
//!
//! The same operations run without probes, with a pair of programs that do nothing (the floor that
//! the kernel's trampoline sets), and with the measuring pair. The three take turns, so that a
//! machine that gets faster or slower does so for all of them.

use std::io::{self, Write};

use serde::Serialize;

use crate::cli::CostArgs;
use crate::error::{Failure, exit};
use crate::load::{BuiltinKind, time_builtin};
use crate::privileges;
use crate::probe::{Options, Probes, Session as _};
use crate::profile::{Backend, Clock, OutputFile};
use crate::target::{KernelFiles, Target};

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
    /// One operation with the measuring pair on the handler.
    pub measured_ns: f64,
    /// Added to each call by the empty pair: the floor.
    pub floor_per_hit_ns: f64,
    /// Added to each call by the measuring pair.
    pub added_per_hit_ns: f64,
}

/// Runs the measurement and prints it.
///
/// # Errors
/// As [`measure`]; and when the output cannot be written.
pub fn run(args: &CostArgs) -> Result<(), Failure> {
    privileges::check()?;
    super::put_back();
    let handlers = [args.handler.clone()];
    let targets = KernelFiles::default().resolve(args.module.as_deref(), &handlers)?;
    let [target] = targets.as_slice() else {
        let text = format!("`{}` matches several handlers: name one", args.handler);
        return Err(Failure::new(exit::USAGE, text));
    };
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let cost = measure(
        target,
        args.backend,
        args.builtin,
        args.operations,
        args.rounds,
        args.clock.into(),
    )?;
    if let Some(file) = json {
        let mut bytes = serde_json::to_vec_pretty(&cost)
            .map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
        bytes.push(b'\n');
        file.commit(&bytes)?;
    }
    print(&cost, &mut io::stdout().lock()).map_err(|error| {
        Failure::new(exit::BAD_OUTPUT, format!("cannot write the result: {error}"))
    })
}

fn print(cost: &Cost, out: &mut dyn Write) -> io::Result<()> {
    let unit = match cost.clock {
        Clock::Wall => "ns",
        Clock::Virtual => "instructions (ns of the virtual clock)",
    };
    writeln!(
        out,
        "{} by {} under {}: {} operations, {} rounds, medians, {} hits an operation",
        cost.handler,
        cost.backend,
        cost.load,
        cost.operations,
        cost.rounds,
        cost.hits_per_operation
    )?;
    writeln!(out, "one operation without probes   {:10.1} {unit}", cost.bare_ns)?;
    writeln!(out, "  with an empty pair           {:10.1}", cost.empty_ns)?;
    writeln!(out, "  with the measuring pair      {:10.1}", cost.measured_ns)?;
    writeln!(out, "added per hit, empty pair      {:10.1}", cost.floor_per_hit_ns)?;
    writeln!(out, "added per hit, measuring pair  {:10.1}", cost.added_per_hit_ns)?;
    writeln!(out, "average that it measures       {:10.1}", cost.average_ns)
}

/// Which probes are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    None,
    Empty,
    Measuring,
}

/// One measurement.
#[derive(Debug, Default)]
struct Round {
    operation_ns: f64,
    backend: Option<Backend>,
    hits: u64,
    sum_ns: u64,
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
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
            Failure::new(exit::INTERNAL, format!("cannot start the runtime: {error}"))
        })?;
    let time = |operations| {
        runtime
            .block_on(time_builtin(kind, operations, 1))
            .map_err(|failure| Failure::new(exit::LOAD_FAILED, failure.to_string()))
    };
    let one = |on| -> Result<Round, Failure> {
        let targets = std::slice::from_ref(target);
        let options = Options { backend, empty: on == On::Empty, ..Options::default() };
        let mut session = match on {
            On::None => None,
            _ => Some(Probes::attach(targets, options)?),
        };
        // First calls fill caches and translate the guest's code.
        time(operations / 10 + 1)?;
        if let Some(session) = &mut session {
            session.drain()?;
        }
        let elapsed = time(operations)?;
        let mut round =
            Round { operation_ns: elapsed as f64 / operations as f64, ..Round::default() };
        if let Some(session) = &mut session {
            round.backend = session.backends().first().copied();
            for drained in session.drain()? {
                round.hits += drained.histogram.len();
                round.sum_ns += drained.sum_ns;
            }
        }
        Ok(round)
    };
    let (mut bare, mut empty, mut measured) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = Round::default();
    for _ in 0..rounds.max(1) {
        bare.push(one(On::None)?.operation_ns);
        empty.push(one(On::Empty)?.operation_ns);
        last = one(On::Measuring)?;
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
    let (bare_ns, empty_ns, measured_ns) = (median(bare), median(empty), median(measured));
    Ok(Cost {
        handler: target.name.clone(),
        backend,
        load: kind.to_string(),
        clock,
        operations,
        rounds: rounds.max(1),
        hits_per_operation,
        average_ns: sum_ns as f64 / hits as f64,
        bare_ns,
        empty_ns,
        measured_ns,
        floor_per_hit_ns: (empty_ns - bare_ns) / hits_per_operation,
        added_per_hit_ns: (measured_ns - bare_ns) / hits_per_operation,
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_few() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
    }
}
