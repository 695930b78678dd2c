//! A part of `profiler-load` for the fuzzer alone.

use super::runtest;

/// A list of tests.
pub fn runtest(bytes: &[u8]) {
    let Ok(tests) = runtest::parse_all(bytes) else { return };
    for test in &tests {
        assert!(!test.argv().is_empty() && !test.command.contains('\n'));
        assert!(test.plain_program().is_none_or(|program| test.command.starts_with(program)));
    }
}
