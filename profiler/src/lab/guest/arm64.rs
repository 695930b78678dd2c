//! QEMU's devices and the clock of a guest that is its machine `virt`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Where fw_cfg is (`VIRT_FW_CFG` of QEMU's hw/arm/virt.c): its data, and behind it the selector (`docs/specs/fw_cfg.rst`).
const FW_CFG: i64 = 0x0902_0000;
const SELECTOR: usize = 8;

/// Vendor and device of pvpanic as a PCI device, on which a guest stops the machine: QEMU's `docs/specs/pci-ids.rst`.
const PVPANIC: [&str; 2] = ["0x1b36", "0x0011"];

/// A page of a device's registers.
const PAGE: usize = 4096;

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
        let pvpanic = pvpanic()?;
        fs::write(pvpanic.join("enable"), "1")?;
        Ok(Self {
            fw_cfg: registers(Path::new("/dev/mem"), FW_CFG)?,
            pvpanic: registers(&pvpanic.join("resource0"), 0)?,
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

/// The folder of the pvpanic device.
fn pvpanic() -> io::Result<PathBuf> {
    let is_it = |folder: &PathBuf| {
        ["vendor", "device"].map(|file| fs::read_to_string(folder.join(file)).unwrap_or_default())
            == PVPANIC.map(|id| format!("{id}\n"))
    };
    let devices = fs::read_dir("/sys/bus/pci/devices")?.flatten().map(|entry| entry.path());
    devices
        .into_iter()
        .find(is_it)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "QEMU has no device pvpanic-pci"))
}

/// Maps registers.
fn registers(path: &Path, at: i64) -> io::Result<*mut u8> {
    let of =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let file: File = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_SYNC)
        .open(path)
        .map_err(of)?;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            at,
        )
    };
    match page == libc::MAP_FAILED {
        true => Err(of(io::Error::last_os_error())),
        false => Ok(page.cast()),
    }
}

/// The system's counter, of which a tick is two instructions under virtual time: the host sets its frequency to 500 MHz.
pub(super) mod clock {
    use std::arch::asm;

    /// Instructions in which an interrupt that came last is done.
    const MARGIN: u64 = 200_000;

    /// Instructions of a turn of the loop that waits: QEMU translates it as one block.
    const TURN: u64 = 128;

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

    /// Waits until `at`, under virtual time to the instruction.
    pub(in super::super) fn align(at: u64) {
        let mut now = read();
        while now < at {
            // Half of what is left, as interrupts take ticks, too.
            let turns = ((at - now) / 2 / TURN).max(1);
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
            now = read();
        }
        let left = (at + MARGIN).saturating_sub(now);
        // SAFETY: counts down in registers: two instructions for each two that are left, and one for an odd one.
        unsafe {
            asm!(
                "2:",
                "subs {pairs}, {pairs}, #1",
                "b.ne 2b",
                "cbz {odd}, 3f",
                "nop",
                "3:",
                pairs = inout(reg) (left / 2).max(1) => _,
                odd = in(reg) left % 2,
                options(nomem, nostack)
            );
        }
    }
}
