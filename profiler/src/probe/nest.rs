//! The cost that an inner call's probes add to the outer call. It belongs to no handler. It is measured on
//! two of the kernel's test functions, of which one calls the other and both do next to nothing.

use std::os::fd::AsFd as _;

use super::{
    Drained, Options, Precision, ProbeError, Session as _,
    bpf::BpfSession,
    feature,
    object::Costs,
    select::Choice,
    sys::{self, AttachType},
};
use crate::{
    kernel::target::{KernelFiles, Target},
    recording::Backend,
    stats::Durations,
};

/// Calls the next one, and is called by a test run of a program (kernel 5.7, commit da00d2f117a0).
const OUTER: &str = "bpf_prog_test_run_tracing";

/// Adds one to a number; nothing else calls it (kernel 5.5, commit faeb2dce084a).
const INNER: &str = "bpf_fentry_test1";

/// How often they are called, in how many batches, and before that, for caches. Whatever else the machine
/// does, and a hypervisor to it, makes a batch slower and never faster: the fastest one counts.
const RUNS: u32 = 200;
const BATCHES: u32 = 10;
const WARM: u32 = 200;

/// Refuses handlers whose self time cannot be measured.
///
/// # Errors
/// When handlers are measured by several backends, or by one without programs.
pub(super) fn check(targets: &[Target], choices: &[Choice]) -> Result<(), ProbeError> {
    let refused = |reason| Err(ProbeError::NoSelfTime { reason });
    let mut chosen = targets.iter().zip(choices);
    let Some((first, choice)) = chosen.next() else { return Ok(()) };
    // Each backend keeps its calls under way in a map of its own.
    if let Some((other, of_other)) = chosen.find(|(_, other)| other.backend != choice.backend) {
        return refused(format!(
            "one backend has to measure all handlers, and {} is for {}, {} for {} (--backend NAME takes \
             one for all)",
            first.label(),
            choice.backend,
            other.label(),
            of_other.backend
        ));
    }
    if choice.backend == Backend::FunctionGraph {
        let reason = "the tracer writes its own work into durations, and how much is not known";
        return refused(format!("{} is for function-graph, and {reason}", first.label()));
    }
    Ok(())
}

/// Measures what probes of `backend` add.
///
/// # Errors
/// When it cannot be measured on this kernel.
pub(super) fn measure_costs(backend: Backend, options: Options) -> Result<Costs, ProbeError> {
    let refused = |reason: String| ProbeError::NoSelfTime { reason };
    if backend == Backend::Fentry && !sys::has_exchange() {
        // commit ca06f55b9002
        let reason = "before 5.12 an interrupt may run a program on top of itself";
        return Err(refused(reason.to_owned()));
    }
    let described = |name| {
        KernelFiles::default().described(name).map_err(|error| {
            refused(format!(
                "what probes add is measured on functions that the kernel has for tests: {error}"
            ))
        })
    };
    let (outer, inner) = (described(OUTER)?, described(INNER)?);
    let program = feature::load("fentry", AttachType::Fentry, inner.btf_id.unwrap_or_default())
        .map_err(|refusal| refused(refusal.what))?;
    let run = |times| {
        (0..times).try_for_each(|_| sys::test_run(program.as_fd())).map_err(|error| {
            ProbeError::System { doing: "calling the kernel's test functions", error }
        })
    };
    let options =
        Options { precision: Precision::Three, allow_shared: true, room_for: 0, ..options };
    let measure = |targets: &[Target]| -> Result<Vec<Vec<Drained>>, ProbeError> {
        let mut session = BpfSession::attach_with(targets, backend, options, Costs::default())?;
        run(WARM)?;
        session.drain()?;
        let batch = |_| {
            run(RUNS)?;
            session.drain()
        };
        (0..BATCHES).map(batch).collect()
    };
    let alone = measure(std::slice::from_ref(&outer))?;
    let both = measure(&[outer, inner])?;
    costs(&alone, &both).ok_or_else(|| {
        let batches = alone.iter().chain(&both).flatten();
        let seen: Vec<u64> = batches.map(|drained| drained.durations.len()).collect();
        refused(format!("of {RUNS} calls of {OUTER} with {INNER} these were seen: {seen:?}"))
    })
}

/// From batches of the outer function without and with probes on the inner one; `None` where calls of a
/// batch are missing.
fn costs(alone: &[Vec<Drained>], both: &[Vec<Drained>]) -> Option<Costs> {
    let mut bare = Vec::new();
    for batch in alone {
        let [outer] = batch.as_slice() else { return None };
        bare.push(&outer.durations);
    }
    let (mut own, mut within) = (Vec::new(), Vec::new());
    for batch in both {
        let [outer, inner] = batch.as_slice() else { return None };
        own.push(&outer.self_time.as_ref()?.durations);
        within.push(&inner.durations);
    }
    Some(Costs {
        // The program itself measures from the inner call's start to the end of its exit program.
        outside_ns: fastest(&own)?.saturating_sub(fastest(&bare)?),
        inside_ns: fastest(&within)?,
    })
}

/// The least median, in ns: a median, because of interrupts.
fn fastest(batches: &[&Durations]) -> Option<u64> {
    if batches.iter().any(|batch| batch.len() < u64::from(RUNS)) {
        return None;
    }
    batches.iter().map(|batch| batch.histogram().value_at_quantile(0.5)).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Books;
    use crate::recording::measure::SelfTime;

    fn target(name: &str) -> Target {
        Target { name: name.to_owned(), module: None, address: 0, ..Target::default() }
    }

    fn chosen(backends: &[Backend]) -> Result<(), String> {
        let targets: Vec<Target> = ["outer", "inner"].map(target).into();
        let choices: Vec<Choice> =
            backends.iter().map(|&backend| Choice { backend, obstacles: Vec::new() }).collect();
        check(&targets, &choices).map_err(|error| error.to_string())
    }

    #[test]
    fn one_backend_with_programs_has_to_measure_all() {
        for &backend in Backend::ALL {
            let programs = backend != Backend::FunctionGraph;
            assert_eq!(chosen(&[backend, backend]).is_ok(), programs, "{backend}");
        }
        let mixed = chosen(&[Backend::Fentry, Backend::KprobeMulti]).unwrap_err();
        assert!(mixed.contains("outer is for fentry, inner for kprobe-multi"), "{mixed}");
    }

    fn drained(duration: u64, own: u64, calls: u32) -> Drained {
        let durations = |ns| {
            let mut durations = Precision::Three.durations().unwrap();
            durations.record_n(ns, calls.into()).unwrap();
            // An interrupt came in.
            durations.record_n(1_000_000, u64::from(calls) / 10).unwrap();
            durations
        };
        let self_time = Some(SelfTime { durations: durations(own), probes_ns: 0 });
        Drained { durations: durations(duration), self_time, books: Books::default() }
    }

    #[test]
    fn costs_are_what_the_outer_call_grows_by() {
        let alone = [vec![drained(100, 100, RUNS)]];
        let both = [vec![drained(900, 350, RUNS), drained(60, 60, RUNS)]];
        let found = costs(&alone, &both);
        assert_eq!(found, Some(Costs { outside_ns: 250, inside_ns: 60 }));
        let unseen = [vec![drained(900, 350, RUNS), drained(60, 60, 10)]];
        assert_eq!(costs(&alone, &unseen), None);
        assert_eq!(costs(&[], &both), None);
    }

    #[test]
    fn what_else_the_machine_does_in_a_batch_is_no_cost() {
        let alone = [100, 300].map(|took| vec![drained(took, took, RUNS)]);
        let both = [3, 1].map(|slow| {
            vec![drained(900 * slow, 350 * slow, RUNS), drained(60 * slow, 60 * slow, RUNS)]
        });
        let found = costs(&alone, &both);
        assert_eq!(found, Some(Costs { outside_ns: 250, inside_ns: 60 }));
    }
}
