//! QEMU's devices and the clock of a guest that is its machine `virt`.

use std::fs::{self, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt as _;

use nix::sys::mman::{MapFlags, ProtFlags, mmap};

/// Where fw_cfg is (`VIRT_FW_CFG` of QEMU's hw/arm/virt.c): its data, and behind it the selector (`docs/specs/fw_cfg.rst`).
const FW_CFG: i64 = 0x0902_0000;
const SELECTOR: usize = 8;

/// The folder of pvpanic as a PCI device, on which a guest stops the machine, at the place that the host gives it: QEMU's
/// `docs/specs/pvpanic.rst`.
const PVPANIC: &str = "/sys/bus/pci/devices/0000:00:1f.0";

/// A page of a device's registers.
const PAGE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Devices that this process has access to.
pub(super) struct Devices {
    fw_cfg: *mut u8,
    pvpanic: *mut u8,
}

impl Devices {
    /// Gets access.
    ///
    /// # Errors
    /// If there is no such device, or the kernel refuses it.
    pub(super) fn open() -> io::Result<Self> {
        fs::write(format!("{PVPANIC}/enable"), "1")?;
        Ok(Self {
            fw_cfg: registers("/dev/mem", FW_CFG)?,
            pvpanic: registers(&format!("{PVPANIC}/resource0"), 0)?,
        })
    }

    /// Stops the machine.
    pub(super) fn pause(&self) {
        // SAFETY: `open` mapped the register, and the device writes no memory of this process.
        unsafe { self.pvpanic.write_volatile(1) };
    }

    /// Selects the item of fw_cfg that is read next.
    pub(super) fn select(&self, key: u16) {
        // SAFETY: `open` mapped the register, whose address is even.
        unsafe { self.fw_cfg.add(SELECTOR).cast::<u16>().write_volatile(key.to_be()) };
    }

    /// The next bytes of the item.
    pub(super) fn read(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = Vec::with_capacity(bytes + size_of::<u64>());
        while buffer.len() + size_of::<u64>() <= bytes {
            // SAFETY: `open` mapped the register, which may be read in parts of up to eight bytes and keeps their order.
            buffer.extend(unsafe { self.fw_cfg.cast::<u64>().read_volatile() }.to_ne_bytes());
        }
        while buffer.len() < bytes {
            // SAFETY: as above.
            buffer.push(unsafe { self.fw_cfg.read_volatile() });
        }
        buffer
    }
}

/// Maps registers.
fn registers(path: &str, at: i64) -> io::Result<*mut u8> {
    let of = |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"));
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_SYNC).open(path).map_err(of)?;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let page = unsafe { mmap(None, PAGE, access, MapFlags::MAP_SHARED, &file, at) };
    Ok(page.map_err(|errno| of(errno.into()))?.as_ptr().cast())
}

/// The system's counter, of which a tick is two instructions under virtual time: the host sets its frequency to 500 MHz.
pub(super) mod clock {
    use std::arch::asm;

    /// Instructions of a turn of the loop that waits: QEMU translates it as one block.
    pub(in super::super) const TURN: u64 = 128;

    /// In instructions: two reads one after the other tell which half of a tick it is.
    pub(in super::super) fn read() -> u64 {
        loop {
            let (first, second): (u64, u64);
            // SAFETY: reads the counter, which user space may.
            unsafe {
                asm!(
                    "mrs {}, cntvct_el0",
                    "mrs {}, cntvct_el0",
                    out(reg) first,
                    out(reg) second,
                    options(nomem, nostack)
                );
            }
            // No interrupt came between.
            if second.wrapping_sub(first) <= 1 {
                return second.wrapping_mul(2) + u64::from(first == second);
            }
        }
    }

    /// Waits for so many turns of [`TURN`] instructions.
    pub(in super::super) fn spin(turns: u64) {
        // SAFETY: counts down in a register.
        unsafe {
            asm!(
                "2:",
                ".rept {nops}",
                "nop",
                ".endr",
                "subs {turns}, {turns}, #1",
                "b.ne 2b",
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
                "subs {pairs}, {pairs}, #1",
                "b.ne 2b",
                "cbz {odd}, 3f",
                "nop",
                "3:",
                pairs = inout(reg) pairs => _,
                odd = in(reg) odd,
                options(nomem, nostack)
            );
        }
    }
}
