//! BPF programs.
fn main() {}
