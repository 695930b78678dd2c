//! Latency profiler for the hook handlers of kernel modules.
pub mod cmd;
pub mod export;
pub mod host;
pub mod load;
pub mod measure;
pub mod probe;
pub mod module;
pub mod profile;
pub mod stats;
pub mod target;
pub mod warning;
