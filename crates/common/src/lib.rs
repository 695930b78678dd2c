//! What the BPF side and user space of the profiler share: where a duration is counted
//! ([`bucket`]) and how the maps are laid out ([`layout`]).
//!
//! Both sides compile this same code, so a bucket that user space reads is the bucket that the
//! kernel side wrote.
#![no_std]

pub mod bucket;
pub mod layout;
