//! Latency profiler for the hook handlers of kernel modules.
//!
//! Data flows one way: [`kernel`] resolves names, [`probe`] measures them while a [`load`] runs,
//! and what comes out is a [`recording`], which [`export`] shows. [`run`] is one measurement over time; [`cmd`]
//! joins these.
#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic where nobody reads: `terminal` does not"
)]

pub mod args;
pub mod atomic_file;
mod bytes;
pub mod cli;
pub mod cmd;
pub mod cost;
pub mod doctor;
pub mod emulator;
pub mod error;
pub mod explain;
pub mod export;
pub mod kernel;
pub mod kernels;
pub mod lab;
pub mod limits;
pub mod load;
pub mod load_profile;
pub mod prepare;
pub mod probe;
pub mod progress;
pub mod recording;
pub mod run;
#[cfg(test)]
mod schema;
pub mod serve;
pub mod stats;
pub mod stop;
pub mod terminal;
pub mod text;
pub mod toml_file;
pub mod trace_cmd;
pub mod verdict;
