//! Latency profiler for the hook handlers of kernel modules: the commands.
//!
//! Data flows one way: [`profiler_kernel`] resolves names, [`profiler_probe`] measures them while a [`profiler_load`] runs,
//! and what comes out is a [`profiler_recording`], which [`profiler_export`] shows. [`profiler_run`] is one measurement over
//! time, [`profiler_lab`] one by counted instructions; [`cmd`] joins these.

pub mod cli;
pub mod cmd;
pub mod serve;
