//! Fixed-size pieces of byte strings whose length nobody has checked.

/// The `N` bytes at place `at`; `None` if there are fewer.
#[inline]
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}
