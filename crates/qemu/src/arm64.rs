//! arm64. A call leaves its return address in a register, which the plugin interface of QEMU 7.2 does not show: a call ends when a
//! `ret` leads to the code behind it. A task is known by the address where a task switch stores its registers.

use crate::arch::{Arch, Interrupt, Kind};

pub(crate) static ARCH: Arch =
    Arch { kind, orders, interrupt, is_system_call, ..Arch::new("aarch64") };

/// `stp x19, x20, [x8], #16` and `ldp x19, x20, [x8], #16`, which `cpu_switch_to` alone has (arch/arm64/kernel/entry.S).
const SUSPEND: u32 = 0xa881_5113;
const RESUME: u32 = 0xa8c1_5113;

/// `movz xzr, #0x52NN, lsl #48`, which does nothing: the guest speaks to the plugin by it.
const REQUEST: u32 = 0xd2ea_401f;

/// The kind of an instruction: Arm's manual of the architecture, chapter C4, "Branches, Exception Generating and System instructions".
fn kind(bytes: &[u8]) -> Kind {
    let Ok(bytes) = bytes.try_into() else { return Kind::Other };
    let word = u32::from_le_bytes(bytes);
    match word {
        SUSPEND => return Kind::Suspend,
        RESUME => return Kind::Resume,
        _ if word & !0x1fe0 == REQUEST => return Kind::Request((word >> 5) as u8),
        _ => {}
    }
    // Those with pointer authentication differ in bits 24, 11 and 10 and in the second register.
    match word & 0xffff_f000 {
        0xd63f_0000 | 0xd73f_0000 => Kind::Link,
        0xd65f_0000 => Kind::Back,
        0xd69f_0000 => Kind::InterruptReturn,
        _ if word >> 26 == 0b10_0101 => Kind::Link,
        _ if word & 0xffe0_001f == 0xd420_0000 => Kind::Breakpoint,
        _ => Kind::Other,
    }
}

/// Exclusive and ordered accesses, compare and swap, atomic memory operations, and barriers: the same chapter, "Loads and Stores" and
/// "Barriers".
fn orders(bytes: &[u8]) -> bool {
    let Ok(bytes) = bytes.try_into() else { return false };
    let word = u32::from_le_bytes(bytes);
    word & 0x3f00_0000 == 0x0800_0000
        || word & 0x3f20_0c00 == 0x1900_0000
        || word & 0x3b20_0c00 == 0x3820_0000
        || (word & 0xffff_f01f == 0xd503_301f && matches!((word >> 5) & 7, 4..=7))
}

/// Tables of vectors, of which a kernel uses one: the others work around Spectre-BHB (arch/arm64/kernel/entry.S).
const VECTORS: [&str; 2] = ["vectors", "__bp_harden_el1_vectors"];

/// Vectors have no symbols. Those that the kernel is left by for itself are a synchronous exception, an interrupt, a fast one, and an
/// error.
fn interrupt(name: &str, offset: u64) -> Option<Interrupt> {
    match offset % 0x800 {
        0x200 if VECTORS.contains(&name) => Some(Interrupt::Fault),
        0x280 | 0x300 | 0x380 if VECTORS.contains(&name) => Some(Interrupt::Asynchronous),
        _ => None,
    }
}

/// Those of 64-bit programs and of 32-bit ones.
fn is_system_call(name: &str) -> bool {
    matches!(name, "do_el0_svc" | "do_el0_svc_compat")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_known_by_its_bytes() {
        for (word, expected) in [
            (0x9400_0003_u32, Kind::Link),        // bl
            (0xd63f_0020, Kind::Link),            // blr x1
            (0xd63f_083f, Kind::Link),            // blraaz x1
            (0xd73f_0822, Kind::Link),            // blraa x1, x2
            (0xd65f_03c0, Kind::Back),            // ret
            (0xd65f_0120, Kind::Back),            // ret x9
            (0xd65f_0bff, Kind::Back),            // retaa
            (0xd69f_03e0, Kind::InterruptReturn), // eret
            (0xd420_0080, Kind::Breakpoint),      // brk #4
            (0xa881_5113, Kind::Suspend),
            (0xa8c1_5113, Kind::Resume),
            (0xd2ea_403f, Kind::Request(1)), // movz xzr, #0x5201, lsl #48
            (0xd2ea_409f, Kind::Request(4)),
            (0xd2ea_8000, Kind::Other), // movz x0
            (0x1400_0001, Kind::Other), // b
            (0xd61f_0020, Kind::Other), // br x1
            (0xd503_245f, Kind::Other), // bti c
        ] {
            assert_eq!(kind(&word.to_le_bytes()), expected, "{word:x}");
        }
    }

    #[test]
    fn an_instruction_that_orders_others_is_known_by_its_bytes() {
        for (word, expected) in [
            (0x885f_7c00_u32, true), // ldxr w0, [x0]
            (0x8801_fc40, true),     // stlxr w1, w0, [x2]
            (0x88df_fc00, true),     // ldar w0, [x0]
            (0xd940_0001, true),     // ldapur x1, [x0]
            (0x88e0_fc41, true),     // casal w0, w1, [x2]
            (0xb8e0_0041, true),     // ldaddal w0, w1, [x2]
            (0xb8e0_8041, true),     // swpal w0, w1, [x2]
            (0xd503_3bbf, true),     // dmb ish
            (0xd503_3f9f, true),     // dsb sy
            (0xd503_3fdf, true),     // isb
            (0xd503_3f5f, false),    // clrex
            (0xb940_0020, false),    // ldr w0, [x1]
            (0xb860_6820, false),    // ldr w0, [x1, x0]
            (0xa9bf_7bfd, false),    // stp x29, x30, [sp, #-16]!
        ] {
            assert_eq!(orders(&word.to_le_bytes()), expected, "{word:x}");
        }
    }
}
