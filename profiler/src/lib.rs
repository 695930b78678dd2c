//! Latency profiler for the hook handlers of kernel modules.
pub mod load;
pub mod measure;
pub mod target;
