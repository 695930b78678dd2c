//! Latency profiler for the hook handlers of kernel modules.
pub mod measure;
pub mod target;
