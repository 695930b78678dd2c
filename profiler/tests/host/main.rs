//! The crates and the program on this machine: no test needs privileges or a kernel of its own; those are in `tests/vm`. `lab_in_vm` boots VMs.
//!
//! All run in one process, on several threads: what changes the environment, limits, signals or the folder is done in a
//! program that the test starts.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stdout, reason = "shown of a test that failed")]
#![allow(clippy::too_many_lines, reason = "a test tells its story from start to end")]

#[path = "../common/mod.rs"]
mod common;

mod browser;
mod disk_full;
mod docs;
mod doctor;
mod durable;
mod explain;
mod export;
mod gate;
mod html;
mod import;
mod keeper;
mod kernels;
mod lab_in_vm;
mod load;
mod ltp;
mod ltp_profiles;
mod merge;
mod metric_messages;
mod program;
mod readers;
mod report;
mod run;
mod schema;
mod serve_docs;
mod serve_http;
mod serve_metrics;
mod serve_otlp;
mod serve_prometheus;
mod serve_state;
mod shell;
mod systemd;
mod terminal;
mod unlike;
