//! Set-up, builds, VM runs and tests of the profiler.
fn main() {}
