//! The profiler on a real kernel, compared with a module that counts its own calls.
//!
//! Root in a virtual machine only, where `cargo xtask test` runs it, one test at a time: the tests
//! load and unload a kernel module and share its counters. The reason why a plain run ignores a test
//! says where it runs: `#[ignore = "VM 6.1 6.12, virtual time"]`. Kernels, then `virtual time` if the
//! guest's clock has to count instructions (such a guest has one CPU, the others have two), then why
//! the test does not run on the other kernels. `xtask/src/test/plan.rs` parses it; `cargo xtask test
//! --list` prints what runs where; `testbed::series` is the running kernel.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stdout, reason = "shown of a test that failed")]
#![allow(clippy::too_many_lines, reason = "a test tells its story from start to end")]

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod bpf_programs;
mod cli;
mod counts;
mod ends;
mod exact;
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
mod own_probes;
mod pairing;
mod preempted;
mod repeats;
mod replaced;
mod runs;
mod serve;
mod serve_long;
mod serve_rights;
mod testbed;
mod trees;
mod window;
