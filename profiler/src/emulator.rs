//! Requests of a guest to the plugin in its emulator, which counts instructions from outside (`profiler-qemu`).

/// Counting, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counting(());

impl Counting {
    /// Begins. Only in a VM whose emulator has the plugin does this do anything.
    #[must_use]
    pub(crate) fn begin() -> Self {
        request::<1>();
        Self(())
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        request::<2>();
    }
}

/// A NOP whose operand is the request's number and `ROF`.
fn request<const NUMBER: u8>() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `nop dword [rax + rax + 0x464f52NN]` reads and writes nothing.
    unsafe {
        std::arch::asm!(
            ".byte 0x0f, 0x1f, 0x84, 0x00, {number}, 0x52, 0x4f, 0x46",
            number = const NUMBER,
            options(nomem, nostack, preserves_flags)
        );
    }
}
