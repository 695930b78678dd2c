//! QEMU's devices and the clock of a guest that is a PC.

use std::arch::asm;
use std::io;

/// Ports of fw_cfg: QEMU's `docs/specs/fw_cfg.rst`.
const SELECTOR: u16 = 0x510;
const DATA: u16 = 0x511;

/// The port of the pvpanic device, on which a guest stops the machine: QEMU's `docs/specs/pvpanic.rst`.
const PAUSE: u16 = 0x505;

/// Devices that this process has access to.
pub(super) struct Devices(());

impl Devices {
    /// Gets access.
    ///
    /// # Errors
    /// If the kernel refuses the ports.
    pub(super) fn open() -> io::Result<Self> {
        for (first, ports) in [(PAUSE, 1), (SELECTOR, 2)] {
            // SAFETY: gives this process access to ports and touches no memory.
            if unsafe { libc::ioperm(first.into(), ports, 1) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self(()))
    }

    /// Stops the machine.
    pub(super) fn pause(&self) {
        // SAFETY: `open` got access to the port; the device writes no memory of this process. What was written to
        // memory before is there, as `nomem` is not promised.
        unsafe {
            asm!("out dx, al", in("dx") PAUSE, in("al") 1_u8, options(nostack, preserves_flags))
        };
    }

    /// Selects the item of fw_cfg that is read next.
    pub(super) fn select(&self, key: u16) {
        // SAFETY: as in `pause`.
        unsafe {
            asm!("out dx, ax", in("dx") SELECTOR, in("ax") key, options(nostack, preserves_flags))
        };
    }

    /// The next bytes of the item.
    pub(super) fn read(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0_u8; bytes];
        // SAFETY: as in `pause`; it writes `bytes` bytes to the buffer, which has as many.
        unsafe {
            asm!(
                "rep insb",
                in("dx") DATA,
                inout("rdi") buffer.as_mut_ptr() => _,
                inout("rcx") bytes => _,
                options(nostack, preserves_flags)
            );
        }
        buffer
    }
}

/// The CPU's counter: under virtual time a tick is an instruction.
pub(super) mod clock {
    use std::arch::asm;
    use std::arch::x86_64::_rdtsc;

    /// Instructions of a turn of the loop that waits: QEMU translates it as one block.
    pub(in super::super) const TURN: u64 = 128;

    pub(in super::super) fn read() -> u64 {
        // SAFETY: reads the CPU's counter, which user space may.
        unsafe { _rdtsc() }
    }

    /// Waits for so many turns of [`TURN`] instructions. A NOP takes QEMU next to nothing, and to read the counter much.
    pub(in super::super) fn spin(turns: u64) {
        // SAFETY: counts down in a register.
        unsafe {
            asm!(
                "2:",
                ".rept {nops}",
                "nop",
                ".endr",
                "dec {turns}",
                "jnz 2b",
                nops = const TURN - 2,
                turns = inout(reg) turns => _,
                options(nomem, nostack)
            );
        }
    }

    /// Takes two instructions for each of these pairs, and one more if `odd` is 1.
    pub(in super::super) fn take(pairs: u64, odd: u64) {
        // SAFETY: counts down in registers.
        unsafe {
            asm!(
                "2:",
                "dec {pairs}",
                "jnz 2b",
                "test {odd}, {odd}",
                "jz 3f",
                "nop",
                "3:",
                pairs = inout(reg) pairs => _,
                odd = in(reg) odd,
                options(nomem, nostack)
            );
        }
    }
}
