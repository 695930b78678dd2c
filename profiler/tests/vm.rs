//! The profiler on a real kernel, against a module that knows its own truth.
//!
//! Root in a virtual machine only, where `cargo xtask test` runs it, one test at a time: the tests
//! load and unload a kernel module and share its counters. Tests in `icount` need a guest whose
//! clock counts instructions, all others need two CPUs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

#[path = "common/backends.rs"]
mod backends;
mod common;
#[path = "common/ten.rs"]
mod ten;

#[path = "vm/bad_input.rs"]
mod bad_input;
#[path = "vm/cli.rs"]
mod cli;
#[path = "vm/counts.rs"]
mod counts;
#[path = "vm/ends.rs"]
mod ends;
#[path = "vm/ftrace.rs"]
mod ftrace;
#[path = "vm/globs.rs"]
mod globs;
#[path = "vm/hostile.rs"]
mod hostile;
#[path = "vm/icount.rs"]
mod icount;
#[path = "vm/killed.rs"]
mod killed;
#[path = "vm/kprobe.rs"]
mod kprobe;
#[path = "vm/live.rs"]
mod live;
#[path = "vm/loads.rs"]
mod loads;
#[path = "vm/ltp.rs"]
mod ltp;
#[path = "vm/matrix.rs"]
mod matrix;
#[path = "vm/memory.rs"]
mod memory;
#[path = "vm/namesakes.rs"]
mod namesakes;
#[path = "vm/nested.rs"]
mod nested;
#[path = "vm/pairing.rs"]
mod pairing;
#[path = "vm/preempted.rs"]
mod preempted;
#[path = "vm/repeats.rs"]
mod repeats;
#[path = "vm/replaced.rs"]
mod replaced;
#[path = "vm/runs.rs"]
mod runs;
#[path = "vm/testbed.rs"]
mod testbed;
#[path = "vm/window.rs"]
mod window;
