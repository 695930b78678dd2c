//! Maps of BPF programs in this process's memory: read and written without a system call or a copy.

use std::{io, num::NonZeroUsize, os::fd::BorrowedFd, ptr::NonNull, sync::atomic::AtomicU64};

use nix::{
    errno::Errno,
    sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap},
};

/// The values of an array that was made with `BPF_F_MMAPABLE` (kernel 5.5, commit fc9702273e2e).
pub(crate) struct Mapped {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and what is in it is atomic.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps the first `bytes` of the values; a value takes its size rounded up to 8 bytes.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn new(map: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let length = NonZeroUsize::new(bytes).ok_or(Errno::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let start = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, map, 0)? };
        let mapped = Self { start: start.cast(), words: bytes / size_of::<AtomicU64>() };
        // Loads fork this process, and each fork would copy the table of these pages: the kernel has put in all of them at
        // once (`remap_vmalloc_range`), so that a child would not fault them in.
        // SAFETY: the mapping just made; what it holds does not change.
        unsafe { madvise(start, bytes, MmapAdvise::MADV_DONTFORK)? };
        Ok(mapped)
    }

    /// The values in words of 8 bytes. The kernel's programs may change them at any time.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is that long, begins at a page and lives as long as `self`. Any bytes are
        // valid words, and both sides access them as such or as halves of such.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; no reference to it outlives `self`.
        let _ = unsafe { munmap(self.start.cast(), self.words * size_of::<AtomicU64>()) };
    }
}
