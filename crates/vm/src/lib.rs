//! Kernels and what guests that boot them are run by.
//!
//! [`KernelImage`] reads a kernel file and the BTF in it; [`debian`] fetches kernels. [`files`] and
//! [`durable`] deal with files, here and elsewhere.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arch;
mod console;
mod cpu;
pub mod debian;
pub mod durable;
pub mod files;
mod image;
mod programs;
mod signals;

pub use arch::{Accel, Arch};
pub use console::{Trouble, is_fault, is_trouble};
pub use image::KernelImage;
#[cfg(fuzzing)]
pub use image::fuzzing;
pub use programs::{find_program, quote, search_path, text};
pub use signals::{catch_signals, caught_signal, hangup_is_ignored};
