//! Handlers within handlers: every call is counted, whichever way they nest.

use std::path::Path;

use profiler::kernel::btf::{BTF_FOLDER, Btf};
use profiler::probe::feature::try_backend;
use profiler::probe::select::needs_btf;
use profiler::recording::Backend;
use profiler::stats::Durations;

use crate::cli::{Ended, folder, handler, profiler, saved};
use crate::testbed::{self, Counters};
use crate::window::{Measured, Window};

/// Backends of this kernel that measure self time of functions of the module. Without BTF of modules that is
/// the kprobe alone.
pub(crate) fn backends() -> Vec<Backend> {
    testbed::load();
    let has_btf = testbed::has_btf();
    let functions = Btf::of(None, Path::new(BTF_FOLDER)).unwrap();
    let works = |backend: &Backend| {
        *backend != Backend::FunctionGraph
            && (has_btf || !needs_btf(*backend))
            && try_backend(*backend, Some(&functions)).is_ok()
    };
    let found: Vec<Backend> = Backend::ALL.iter().copied().filter(works).collect();
    assert!(found.len() >= if has_btf { 2 } else { 1 }, "{found:?}");
    found
}

/// Whether every level of a deep recursion is seen: function probes of some kernels skip most of them.
pub(crate) fn sees_recursion(backend: Backend) -> bool {
    !matches!(backend, Backend::KprobeSession | Backend::KprobeMulti)
}

/// Self time is a part of the whole, call by call, and so is the probes' time.
fn assert_parts(measured: &Measured) {
    let measure = &measured.measure;
    let own = measure.self_time.as_ref().expect("asked for");
    assert_eq!(own.durations.len(), measured.count(), "{measured:?}");
    assert!(own.durations.sum_ns() + own.probes_ns <= measure.durations.sum_ns(), "{measured:?}");
    let ends = |durations: &Durations| (durations.max_ns(), durations.min_ns());
    let ((own_max, own_min), (max, min)) = (ends(&own.durations), ends(&measure.durations));
    assert!(own_max <= max && own_min <= min, "{measured:?}");
}

#[test]
#[ignore = "VM 5.10 7.2: 7.2 has all backends of the others"]
fn calls_that_nest_sleep_migrate_and_are_interrupted() {
    for backend in backends() {
        let window = Window::telling_self_time(
            backend,
            &[
                "testbed_outer",
                "testbed_inner",
                "testbed_recurse",
                "testbed_sleep",
                "testbed_migrate",
                "testbed_irq_victim",
            ],
        );
        let nested = Counters::nested();
        let recursion = if sees_recursion(backend) { 32 } else { 1 };
        let recurse = format!("recurse {recursion}");
        for command in ["nested 3000", &recurse, "sleep 200 50", "migrate 100", "irq 200"] {
            testbed::trigger(command);
        }
        assert_eq!(Counters::nested() - nested, 200);
        let counts = [3_000, 3_000, recursion, 50, 100];
        let mut all = window.end();
        assert_interrupted(backend, &all.pop().unwrap());
        for (measured, count) in all.iter().zip(counts) {
            assert_eq!(measured.count(), count, "{backend}: {measured:?}");
            measured.assert_exact();
            assert_parts(measured);
            let own = measured.measure.self_time.as_ref().unwrap();
            let sums = (own.durations.sum_ns(), measured.measure.durations.sum_ns());
            let alone = own.probes_ns == 0 && sums.0 == sums.1;
            let outer = match measured.name() {
                "testbed_outer" => true,
                "testbed_recurse" => sees_recursion(backend),
                _ => false,
            };
            assert_eq!(alone, !outer, "{backend}: {measured:?}");
        }
    }
}

/// A call from an interrupt is nested in the interrupted call. If the kernel skips a program that is running
/// already, that call is missed.
fn assert_interrupted(backend: Backend, measured: &Measured) {
    let losses = measured.measure.losses;
    let found = format!("{backend}: {measured:?}");
    assert_eq!(losses.imbalance(measured.count()), 0, "{found}");
    // An interrupt within a probe itself may be lost by any that the kernel keeps from running twice.
    assert!(
        measured.count() <= measured.truth && measured.count() * 2 >= measured.truth,
        "{found}"
    );
    assert_parts(measured);
    let probes = measured.measure.self_time.as_ref().unwrap().probes_ns;
    assert!(probes > 0 || measured.count() * 2 == measured.truth, "{found}");
}

#[test]
#[ignore = "VM 5.10 7.2: 7.2 has all backends of the others"]
fn the_program_tells_own_time() {
    let folder = folder();
    let file = folder.path().join("nested.json");
    testbed::load();
    // Without BTF of modules function-graph would be chosen, which does not measure it.
    let by = if testbed::has_btf() { "" } else { "--backend kprobe --force" };
    let both = "run --module hids_testbed --handler testbed_outer --handler testbed_inner";
    let run = Ended::of(profiler(&format!("{both} --self-time {by} --json")).arg(&file).args([
        "--",
        "sh",
        "-c",
        "echo nested 5000 >/proc/hids_testbed/trigger",
    ]));
    run.assert_code(0);
    let profile = saved(file, &run.stdout);
    let (outer, inner) = (handler(&profile, "testbed_outer"), handler(&profile, "testbed_inner"));
    let of_outer = outer.self_time.as_ref().unwrap();
    assert_eq!((outer.count, inner.count), (5_000, 5_000));
    assert!(of_outer.probes_ns > 0 && of_outer.sum_ns + of_outer.probes_ns < outer.sum_ns);
    assert_eq!(inner.self_time.as_ref().unwrap().sum_ns, inner.sum_ns);
    assert!(run.stdout.contains("self average"), "{}", run.stdout);
    let refused = Ended::of(&mut profiler(
        "run --module hids_testbed --handler testbed_outer --self-time --backend function-graph --duration 1s",
    ));
    refused.assert_code(3).assert_error(&["testbed_outer", "function-graph"]).assert_nothing_done();
}

/// Before 5.12 an interrupt may run a tracing program on top of itself, which those of self time do not support.
#[test]
#[ignore = "VM 5.10 7.2: 7.2 has all backends of the others"]
fn own_time_by_fentry_is_told_or_refused() {
    let line = "run --handler __sys_connect --self-time --backend fentry --builtin connect --operations 500";
    let ended = Ended::of(&mut profiler(line));
    if testbed::series() == "5.10" {
        ended.assert_code(3).assert_error(&["before 5.12"]).assert_nothing_done();
    } else {
        ended.assert_code(0);
        assert!(ended.stdout.contains("self average"), "{ended:?}");
    }
}
