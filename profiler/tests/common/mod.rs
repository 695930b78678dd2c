//! Helpers of both test binaries.

#![allow(dead_code, reason = "each binary uses some of them")]

pub(crate) mod agent;
pub(crate) mod backends;
pub(crate) mod prometheus;
pub(crate) mod ten;

use std::sync::OnceLock;

use jsonschema::Validator;
use profiler_kernel::host::{HostFacts, Hypervisor};
use profiler_kernel::module::ModuleFacts;
use profiler_kernel::target::Target;
use profiler_load::{BuiltinKind, LoadOutcome, LoadRun, LoadSpec, LoadStatus, StopReason};
use profiler_probe::Precision;
use profiler_recording::measure::{HandlerMeasure, Losses};
use profiler_recording::{
    Backend, Clock, HandlerRecording, HistogramLayout, Meter, Recording, SCHEMA, Tool, VERSION,
};
use serde_json::Value;

/// Layout of the histograms in [`sample`].
pub(crate) const LAYOUT: HistogramLayout = HistogramLayout {
    precision_digits: 3,
    lowest_ns: 1,
    highest_ns: 60_000_000_000,
    kernel_memory_bytes: 2 * 4 * 229_376,
    direct: None,
};

/// Fails with every violation if `json` is not what the committed schema describes.
pub(crate) fn assert_valid(json: &Value) {
    // Compiling it takes longer than most tests, under a translator.
    static SCHEMA: OnceLock<Validator> = OnceLock::new();
    assert_matches(SCHEMA.get_or_init(validator), json);
}

fn assert_matches(schema: &Validator, json: &Value) {
    let errors: Vec<String> = schema
        .iter_errors(json)
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "the schema refuses it:\n{}", errors.join("\n"));
}

/// The committed schema.
pub(crate) fn validator() -> Validator {
    compiled(include_str!("../../schema/recording-v1.schema.json"))
}

/// Panics unless `json` is valid by the committed schema of series.
pub(crate) fn assert_valid_series(json: &Value) {
    static SCHEMA: OnceLock<Validator> = OnceLock::new();
    let schema = || compiled(include_str!("../../schema/series-v1.schema.json"));
    assert_matches(SCHEMA.get_or_init(schema), json);
}

fn compiled(schema: &str) -> Validator {
    let schema: Value = serde_json::from_str(schema).expect("the schema is JSON");
    jsonschema::draft202012::meta::validate(&schema).expect("the schema is a schema");
    // Otherwise `format` is an annotation and a bad time stamp passes.
    jsonschema::draft202012::options()
        .should_validate_formats(true)
        .build(&schema)
        .expect("the schema compiles")
}

/// What a session would hand over for a handler of the test module with these calls.
pub(crate) fn measure(name: &str, durations_ns: &[u64]) -> HandlerMeasure {
    let mut durations = Precision::Three.durations();
    durations_ns.iter().for_each(|&ns| durations.record(ns));
    let (calls, over_range) = (durations.len(), durations.over_range());
    HandlerMeasure {
        target: Target {
            name: name.to_owned(),
            module: Some("hids_testbed".to_owned()),
            address: 0xffff_ffff_c000_1000,
            btf_id: Some(130_000),
            ..Target::default()
        },
        backend: Some(Backend::Fentry),
        durations,
        losses: Losses { entries: calls, exits: calls, over_range, ..Losses::default() },
    }
}

/// A handler of [`sample`].
pub(crate) fn handler(measure: &HandlerMeasure) -> HandlerRecording {
    HandlerRecording::from_measure(measure)
}

/// A run of three handlers: a busy one, one with a long tail and losses, and an idle one.
pub(crate) fn sample() -> Recording {
    let busy: Vec<u64> = (0..10_000).map(|n| 60 + n % 40).collect();
    let mut tail: Vec<u64> = (0..2_000).map(|n| 700 + n).collect();
    tail.extend([1_234_567, 89_000_321]);
    let mut tail = measure("connect_syscall_handler", &tail);
    tail.losses.entries += 3;
    tail.losses.lost = 2;
    tail.losses.in_flight = 1;
    let handlers = [
        measure("connect_syscall_entry_handler", &busy),
        tail,
        measure("udp_recvmsg_handler", &[]),
    ];
    let mut recording = Recording {
        schema: SCHEMA.to_owned(),
        version: VERSION,
        tool: Tool { name: "profiler".to_owned(), version: "0.1.0".to_owned() },
        imported: None,
        started: "2026-11-21T12:00:00.25Z".parse().expect("a time stamp"),
        place: None,
        load_profile: None,
        clock: Clock::Wall,
        meter: Meter::default(),
        window_ns: 10_000_000_000,
        warmup_ns: 1_000_000_000,
        interrupted: false,
        histogram: LAYOUT,
        host: HostFacts {
            kernel_release: Some("6.1.0-56-amd64".to_owned()),
            kernel_version: Some("#1 SMP PREEMPT_DYNAMIC Debian 6.1.181-1".to_owned()),
            arch: "x86_64".to_owned(),
            cpu_model: Some("AMD EPYC".to_owned()),
            cpu_flags: Some("fpu erms rep_good".to_owned()),
            cpus_online: Some(2),
            mitigations: [("meltdown".to_owned(), "Not affected".to_owned())].into(),
            clock_source: Some("tsc".to_owned()),
            hypervisor: Some(Hypervisor { vendor: Some("QEMU".to_owned()), product: None }),
            preemption: Some("voluntary".to_owned()),
            boot_id: Some("5c2f3d0e-0d0b-4c6e-9a55-1a2b3c4d5e6f".to_owned()),
        },
        modules: vec![ModuleFacts {
            name: "hids_testbed".to_owned(),
            version: Some("0.1".to_owned()),
            srcversion: Some("533BB7E5866E52F63B9ACCB".to_owned()),
            build_id: Some("0123456789abcdef0123456789abcdef01234567".to_owned()),
            taint: Some("OE".to_owned()),
            size_bytes: Some(65_536),
            parameters: [("extra".to_owned(), "0".to_owned())].into(),
            given: None,
            command: None,
            hooks: None,
        }],
        loads: vec![LoadRun {
            spec: LoadSpec::Builtin {
                name: BuiltinKind::Connect,
                workers: 2,
                rate_per_s: None,
                operations: None,
                pin: false,
                user: None,
                dimensions: profiler_load::Dimensions::default(),
            },
            outcome: LoadOutcome {
                operations: Some(10_000),
                held_rate_per_s: Some(909.090_909_090_909_1),
                elapsed_ns: 11_000_000_000,
                ..LoadOutcome::ended(
                    LoadStatus::Stopped { by: StopReason::Duration },
                    std::time::Instant::now(),
                )
            },
        }],
        handlers: handlers.iter().map(handler).collect(),
        left_out: Vec::new(),
        driver_costs: Vec::new(),
        call_tree: None,
        snapshot: None,
        sources: Vec::new(),
        warnings: Vec::new(),
    };
    recording.warn();
    recording
}

/// Names of what lies in `folder`, in order.
pub(crate) fn names(folder: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}
