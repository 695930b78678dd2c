//! Files, programs and signals of this machine, for the profiler and for what builds and tests it.

pub mod durable;
pub mod files;
mod programs;
mod signals;

pub use programs::{find_program, quote, search_path, text};
pub use signals::{catch_signals, caught_signal, hangup_is_ignored};
