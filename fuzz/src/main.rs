//! All targets under libFuzzer in one program: to link one for each takes longer than they run.
//! `FUZZ_TARGET` names the target.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

use profiler_fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("FUZZ_TARGET is none of fuzz/README.md: `{name}`")).1
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
