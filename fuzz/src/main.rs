//! Every parser of outside bytes as a target of libFuzzer, in one program: to link one for each takes longer than they run.
//! `FUZZ_TARGET` names the target; README.md says which modules it reaches.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/qemu/src/arch.rs"]
mod arch;
#[allow(dead_code)]
#[path = "../../crates/qemu/src/arm64.rs"]
mod arm64;
#[allow(dead_code)]
#[path = "../../crates/qemu/src/count.rs"]
mod count;
mod driver;
mod lab_counts;
mod plugin;
mod profile_json;
#[allow(dead_code)]
#[path = "../../crates/qemu/src/symbols.rs"]
mod symbols;
mod text;
mod trace_cmd;
mod two_recordings;
#[allow(dead_code)]
#[path = "../../crates/qemu/src/x86.rs"]
mod x86;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use profiler_lab::fuzzing as lab;
use profiler_load::ltp::fuzzing as ltp;
use profiler_probe::ftrace::fuzzing as ftrace;
use profiler::serve::otlp::fuzzing as otlp;

type Target = fn(&[u8]);

const TARGETS: &[(&str, Target)] = &[
    ("accept", text::accept),
    ("btf", driver::btf),
    ("control", text::control),
    ("driver", driver::driver),
    ("gate_rules", text::gate_rules),
    ("guest_answer", lab::guest_answer),
    ("guest_symbols", lab::guest_symbols),
    ("kernel_image", profiler_vm::fuzzing::image),
    ("lab_counts", lab_counts::target),
    ("load_profile", text::load_profile),
    ("otlp_answer", otlp::answer),
    ("plugin_count", plugin::count),
    ("plugin_symbols", plugin::symbols),
    ("profile_json", profile_json::target),
    ("ring_layout", ftrace::layout),
    ("ring_page", ftrace::page),
    ("runtest", ltp::runtest),
    ("serve_toml", text::serve_toml),
    ("trace_cmd", trace_cmd::target),
    ("two_recordings", two_recordings::target),
];

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("FUZZ_TARGET is none of fuzz/README.md: `{name}`")).1
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
