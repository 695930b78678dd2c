//! Requests of a guest to the plugin in its emulator, which counts instructions from outside (`crates/qemu`).

/// Counting, until it is dropped.
#[derive(Debug)]
pub struct Counting(());

impl Counting {
    /// Begins. Only in a VM whose emulator has the plugin does this do anything.
    pub fn begin() -> Self {
        request::<1>();
        Self(())
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        request::<2>();
    }
}

/// A load begins an operation.
pub fn begin_operation() {
    mark::<3>();
}

/// A load has ended its last operation.
pub fn end_operations() {
    mark::<4>();
}

/// Has the plugin take its callbacks out of the code until the next count begins: loading a driver would take twice as long
/// with them.
pub fn rest() {
    request::<5>();
}

/// A request alone: QEMU keeps its translated code.
fn mark<const NUMBER: u8>() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: this NOP reads and writes nothing.
    unsafe {
        std::arch::asm!(
            ".byte 0x0f, 0x1f, 0x84, 0x00, {number}, 0x52, 0x4f, 0x46",
            number = const NUMBER,
            options(nomem, nostack, preserves_flags)
        );
    }
    #[cfg(target_arch = "aarch64")]
    request::<NUMBER>();
}

/// An instruction that does nothing and has the request's number, and on x86-64 a CPUID.
///
/// On the request QEMU throws all translated code away. Before version 8.0 it keeps a pointer to callbacks of the last
/// instruction that left the kernel, which are freed then; an instruction in the same block that is done by a function of QEMU, and
/// that the plugin has a callback for, resets it (`plugin_mem_cbs` of its `CPUState`; patches by Richard Henderson of March 2023).
fn request<const NUMBER: u8>() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `nop dword [rax + rax + 0x464f52NN]` reads and writes nothing, and CPUID its registers alone, of which
    // the compiler keeps RBX for itself.
    unsafe {
        std::arch::asm!(
            "mov {kept}, rbx",
            ".byte 0x0f, 0x1f, 0x84, 0x00, {number}, 0x52, 0x4f, 0x46",
            "cpuid",
            "mov rbx, {kept}",
            kept = out(reg) _,
            number = const NUMBER,
            inout("eax") 0 => _,
            inout("ecx") 0 => _,
            out("edx") _,
            options(nomem, nostack, preserves_flags)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: `movz xzr, #0x52NN, lsl #48` changes nothing.
    unsafe {
        std::arch::asm!(
            ".inst 0xd2ea401f | ({number} << 5)",
            number = const NUMBER,
            options(nomem, nostack, preserves_flags)
        );
    }
}
