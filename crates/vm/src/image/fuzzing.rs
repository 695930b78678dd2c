//! A part of `profiler-vm` for the fuzzer alone.

use super::{has_pvh_entry, largest_btf, payload, release};

/// A kernel's file, or what is packed in it.
pub fn image(bytes: &[u8]) {
    if let Some(release) = release(bytes) {
        assert!(!release.is_empty() && !release.contains(|c: char| c == '/' || c.is_whitespace()));
    }
    if let Some(payload) = payload(bytes) {
        assert!(payload.len() <= bytes.len());
    }
    if let Some(btf) = largest_btf(bytes) {
        assert!(btf.len() >= 24 && btf.len() <= bytes.len());
    }
    has_pvh_entry(bytes);
}
