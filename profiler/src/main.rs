//! The `profiler` program.
fn main() {}
