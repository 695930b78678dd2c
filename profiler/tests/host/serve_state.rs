//! A state of the daemon that is known in every figure.

use std::collections::BTreeMap;
use std::time::Instant;

use profiler::serve::state::{
    Build, HandlerSum, Intervals, Module, NotMeasured, Own, Phase, Pushes, State,
};
use profiler_recording::measure::HandlerMeasure;
use profiler_recording::{HandlerRecording, Recording};

use crate::common::{measure, sample};

/// A recording of these handlers alone, as the daemon makes it: without load and warm-up.
pub(crate) fn recording(handlers: Vec<HandlerRecording>) -> Recording {
    let mut profile = sample();
    profile.handlers = handlers;
    profile.loads.clear();
    profile.warnings.clear();
    profile.warmup_ns = 0;
    profile
}

/// A handler as a build has it.
pub(crate) fn sum(measure: &HandlerMeasure) -> HandlerSum {
    let mut sum = HandlerSum::new(measure.clone());
    if sum.name == "connect_syscall_handler" {
        sum.covered_ns = 1_500_000_000;
    }
    sum
}

pub(crate) fn build(module: &str, id: &str, last: &str, handlers: &[HandlerMeasure]) -> Build {
    let mut frame = recording(Vec::new());
    frame.modules[0].name = module.to_owned();
    frame.modules[0].build_id = Some(id.to_owned());
    Build {
        module: module.to_owned(),
        id: id.to_owned(),
        last: last.parse().unwrap(),
        frame,
        handlers: handlers.iter().map(sum).collect(),
        not_measured: BTreeMap::new(),
        budget_enforced: Some(id == "new"),
    }
}

/// Durations of `connect_syscall_handler` in the build `new`.
pub(crate) const CONNECT: [u64; 8] = [0, 63, 64, 127, 128, 1_000_000, 1_000_000, 90_000_000_000];

/// Two modules: one measured, with two builds, and one that is refused.
pub(crate) fn state() -> State {
    let old = build(
        "hids",
        "old",
        "2026-11-21T12:00:00Z",
        &[measure("connect_syscall_handler", &[100; 10])],
    );
    let mut connect = measure("connect_syscall_handler", &CONNECT);
    connect.losses.entries = 15;
    connect.losses.exits = 9;
    connect.losses.lost = 2;
    connect.losses.missed = 3;
    connect.losses.unpaired_exits = 1;
    connect.losses.overrun = 4;
    connect.losses.doubtful = 1;
    connect.losses.backwards = 1;
    connect.losses.missed_unknown = true;
    let handlers = [connect, measure("idle_handler", &[])];
    let mut new = build("hids", "new", "2026-11-21T12:30:00Z", &handlers);
    new.handlers[0].in_flight = 3;
    new.not_measured.insert("idle_handler".to_owned(), NotMeasured::Shed);
    new.not_measured
        .insert("gone_handler".to_owned(), NotMeasured::Missing("no symbol".to_owned()));
    State {
        since: "2026-11-21T11:00:00Z".parse().unwrap(),
        at: "2026-11-21T12:30:00.5Z".parse().unwrap(),
        made: Instant::now(),
        modules: vec![
            Module { name: "hids".to_owned(), phase: Phase::Measuring },
            Module { name: "other".to_owned(), phase: Phase::Refused("no BTF".to_owned()) },
        ],
        builds: vec![old, new],
        own: Own {
            cpu_ns: 1_500_000_000,
            memory_bytes: 20 << 20,
            kernel_memory_bytes: 3 << 20,
            drains: 5_400,
            drain_ns: 250_000_000,
            drain_failures: 6,
            last_drain: Some("2026-11-21T12:30:00.5Z".parse().unwrap()),
            intervals: Intervals {
                on_disk: 89,
                bytes: 1_234_567,
                waiting: 3,
                removed: 17,
                lost: 1,
            },
            overhead: Some(0.0005),
            shed: 2,
            pushes: Some(Pushes { accepted: 85, failed: 5, rejected_points: 7 }),
        },
    }
}
