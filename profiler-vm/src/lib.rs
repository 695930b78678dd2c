//! A stock kernel on this machine's file tree, through virtme-ng and QEMU.
//!
//! The guest sees the host's files. What it writes is lost with it, except below the folders that
//! the [`VmSpec`] shares. Whether the command ran is decided by one sentinel line that its wrapper
//! prints at the end: no sentinel, no success, whatever the exit status of QEMU.
//!
//! [`KernelImage`] reads a kernel file and the BTF in it; [`kvm::choose`] finds out whether hardware virtualization works; [`run`] boots.
//! [`debian`] fetches kernels. [`durable`] replaces files, here and elsewhere.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arch;
mod command;
mod console;
mod cpu;
pub mod debian;
pub mod durable;
mod error;
mod guest;
mod image;
pub mod kvm;
mod script;
mod seen;
mod spec;
mod udev;

pub use arch::Arch;
pub use command::{find_program, search_path, text};
pub use console::Trouble;
pub use error::VmError;
pub use guest::{Interrupts, hangup_is_ignored, logged_lines, run};
pub use image::KernelImage;
#[cfg(fuzzing)]
pub use image::fuzzing;
pub use script::quote;
pub use spec::{Accel, Time, VmOutcome, VmSpec};
