//! What the BPF side and user space share.
#![no_std]
