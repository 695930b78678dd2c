//! Kernels and what guests that boot them are run by.
//!
//! [`KernelImage`] reads a kernel file and the BTF in it; [`debian`] fetches kernels.

mod arch;
mod console;
pub mod debian;
mod image;

pub use arch::{Accel, Arch};
pub use console::{Trouble, is_fault, is_trouble};
#[cfg(feature = "fuzzing")]
pub use image::fuzzing;
pub use image::{KernelImage, banner};
