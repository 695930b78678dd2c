//! Latency profiler for the hook handlers of kernel modules.
//!
//! Data flows one way: [`target`] resolves names, [`probe`] measures them while a [`load`] runs,
//! and what comes out is a [`profile`], which [`export`] shows. [`cmd`] joins these.

pub mod cli;
pub mod cmd;
pub mod doctor;
pub mod error;
pub mod export;
pub mod host;
pub mod lab;
pub mod load;
pub mod load_profile;
pub mod measure;
pub mod module;
pub mod prepare;
pub mod privileges;
pub mod probe;
pub mod profile;
pub mod progress;
pub mod stats;
pub mod sweep;
pub mod target;
pub mod trace_cmd;
pub mod verdict;
pub mod warning;
pub mod watch;
