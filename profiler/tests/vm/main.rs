//! The profiler on a real kernel, against a module that knows its own truth.
//!
//! Root in a virtual machine only, where `cargo xtask test` runs it, one test at a time: the tests
//! load and unload a kernel module and share its counters. Where a test runs it says itself, as the
//! reason why a plain run ignores it: `#[ignore = "VM 6.1 6.12, virtual time"]`. Kernels, then
//! `virtual time` if the guest's clock has to count instructions (such a guest has one CPU, the
//! others have two), then why the test does not run on the other kernels. `xtask/src/test/plan.rs`
//! reads it; `cargo xtask test --list` prints what runs where.
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
