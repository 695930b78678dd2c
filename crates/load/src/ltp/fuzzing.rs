//! A part of `profiler-load` for the fuzzer alone.
#![allow(clippy::expect_used)] // A panic is a finding.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use super::runtest;

/// In memory, as these are read by path.
static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/profiler-fuzz-{}.ltp", std::process::id())));

/// A list of tests.
pub fn runtest(bytes: &[u8]) {
    fs::write(&*FILE, bytes).expect("/dev/shm can be written to");
    let Ok(tests) = runtest::read(&FILE) else { return };
    for test in &tests {
        assert!(!test.argv().is_empty() && !test.command.contains('\n'));
        assert!(test.plain_program().is_none_or(|program| test.command.starts_with(program)));
    }
}
