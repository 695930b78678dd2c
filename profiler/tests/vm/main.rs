//! The profiler on a real kernel, against a module that knows its own truth.
//!
//! Root in a virtual machine only, where `cargo xtask test` runs it, one test at a time: the tests
//! load and unload a kernel module and share its counters. Tests in `icount` need a guest whose
//! clock counts instructions, all others need two CPUs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod cli;
mod counts;
mod ends;
mod ftrace;
mod globs;
mod hostile;
mod icount;
mod killed;
mod kprobe;
mod live;
mod loads;
mod ltp;
mod matrix;
mod memory;
mod namesakes;
mod nested;
mod pairing;
mod preempted;
mod repeats;
mod replaced;
mod runs;
mod testbed;
mod window;
