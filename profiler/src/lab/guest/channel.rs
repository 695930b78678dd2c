//! The guest's end of its channel to the host: jobs by QEMU's fw_cfg device, answers in memory.
//!
//! An access to a port is done by QEMU before the next instruction runs, so no time passes in the guest, and no interrupt tells
//! of the host's speed. To answer, the guest stops its machine by a write to the pvpanic device; the host then reads the answer
//! from the memory of this process and may take a snapshot there.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::lab::wire::{Answer, FILES, HEADER, Header, JOBS, Job, MAGIC, PAUSE_PORT};

/// Ports of fw_cfg: QEMU's `docs/specs/fw_cfg.rst`.
const SELECTOR: u16 = 0x510;
const DATA: u16 = 0x511;

/// Key of the list of files; each has size, key, two bytes and a name.
const DIRECTORY: u16 = 0x19;
const ENTRY_BYTES: usize = 64;
const NAME_AT: usize = 8;

/// Bytes of the page that holds the header.
const PAGE: usize = 4096;

/// Ticks of the CPU's counter after a stop at which a guest goes on: three timer interrupts, as the kernel has one in 4 ms. Under
/// virtual time a tick is an instruction.
///
/// QEMU lets time skip to the next timer while all CPUs are idle, and one that has just stopped the machine may seem so to its
/// main loop or not (`icount_start_warp_timer` in softmmu/icount.c, `cpu_thread_is_idle` in softmmu/cpus.c). Either way the
/// same interrupts have come by this time.
const ALIGNED: u64 = 12_000_000;

/// The channel, of which a guest has one.
pub(super) struct Channel {
    header: *mut Header,
}

impl Channel {
    /// Opens it.
    ///
    /// # Errors
    /// If the kernel refuses the ports or the address of the header.
    pub(super) fn open() -> io::Result<Self> {
        for (first, ports) in [(PAUSE_PORT, 1), (SELECTOR, 2)] {
            // SAFETY: gives this process access to ports and touches no memory.
            if unsafe { libc::ioperm(first.into(), ports, 1) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping; `MAP_FIXED_NOREPLACE` replaces none.
        let page = unsafe {
            libc::mmap(
                HEADER as *mut libc::c_void,
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if page as u64 != HEADER {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { header: page.cast() })
    }

    /// The jobs that the host has for this guest now.
    ///
    /// # Errors
    /// If there is no such item, or it is damaged.
    pub(super) fn jobs(&self) -> io::Result<Vec<Job>> {
        Ok(serde_json::from_slice(&item(JOBS)?)?)
    }

    /// The files of the jobs.
    ///
    /// # Errors
    /// If there is no such item.
    pub(super) fn files(&self) -> io::Result<Vec<u8>> {
        item(FILES)
    }

    /// Answers, and stops the machine until the host lets it go on.
    pub(super) fn answer(&mut self, answer: &Answer, attachment: &[u8]) {
        let text = serde_json::to_vec(answer).unwrap_or_default();
        let place = |bytes: &[u8]| [bytes.as_ptr() as u64, bytes.len() as u64];
        let header = Header { magic: MAGIC, answer: place(&text), attachment: place(attachment) };
        // SAFETY: `open` mapped the page, and nothing else uses it.
        unsafe { self.header.write_volatile(header) };
        // The host reads memory as the first CPU sees it.
        let this = Pid::from_raw(0);
        let allowed = sched_getaffinity(this).unwrap_or_default();
        let mut first = CpuSet::new();
        let _ = first.set(0).and_then(|()| sched_setaffinity(this, &first));
        let stopped = clock::read();
        port::write_byte(PAUSE_PORT, 1);
        clock::align(stopped + ALIGNED);
        let _ = sched_setaffinity(this, &allowed);
    }
}

/// The bytes of an item of fw_cfg.
fn item(name: &str) -> io::Result<Vec<u8>> {
    port::write_word(SELECTOR, DIRECTORY);
    let count = u32::from_be_bytes(port::read(DATA, 4).try_into().unwrap_or_default());
    for _ in 0..count {
        let entry = port::read(DATA, ENTRY_BYTES);
        let named = entry[NAME_AT..].split(|byte| *byte == 0).next() == Some(name.as_bytes());
        if let (true, [a, b, c, d, high, low, ..]) = (named, entry.as_slice()) {
            port::write_word(SELECTOR, u16::from_be_bytes([*high, *low]));
            return Ok(port::read(DATA, u32::from_be_bytes([*a, *b, *c, *d]) as usize));
        }
    }
    let text = format!(
        "QEMU has no fw_cfg item {name}: this program runs as the first process of a lab's guest alone"
    );
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

#[cfg(target_arch = "x86_64")]
mod clock {
    use std::arch::asm;
    use std::arch::x86_64::_rdtsc;

    /// Ticks in which an interrupt that came last is done.
    const MARGIN: u64 = 200_000;

    /// Instructions of a turn of the loop that waits: QEMU translates it as one block.
    const TURN: u64 = 128;

    pub(super) fn read() -> u64 {
        // SAFETY: reads the CPU's counter, which user space may.
        unsafe { _rdtsc() }
    }

    /// Waits until `at`, under virtual time to the instruction.
    pub(super) fn align(at: u64) {
        let mut now = read();
        while now < at {
            // Half of what is left, as interrupts take ticks, too. A NOP takes QEMU next to nothing, and to read the counter much.
            let turns = ((at - now) / 2 / TURN).max(1);
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
            now = read();
        }
        let left = (at + MARGIN).saturating_sub(now);
        // SAFETY: counts down in registers: two instructions for each two ticks that are left, and one for an odd one.
        unsafe {
            asm!(
                "2:",
                "dec {pairs}",
                "jnz 2b",
                "test {odd}, {odd}",
                "jz 3f",
                "nop",
                "3:",
                pairs = inout(reg) (left / 2).max(1) => _,
                odd = in(reg) left % 2,
                options(nomem, nostack)
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod clock {
    pub(super) fn read() -> u64 {
        0
    }
    pub(super) fn align(_: u64) {}
}

#[cfg(target_arch = "x86_64")]
mod port {
    use std::arch::asm;

    pub(super) fn write_byte(port: u16, value: u8) {
        // SAFETY: `Channel::open` got access to the port; the device writes no memory of this process. What was written to
        // memory before is there, as `nomem` is not promised.
        unsafe {
            asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags))
        };
    }

    pub(super) fn write_word(port: u16, value: u16) {
        // SAFETY: as in `write_byte`.
        unsafe {
            asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack, preserves_flags))
        };
    }

    pub(super) fn read(port: u16, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0_u8; bytes];
        // SAFETY: as in `write_byte`; it writes `bytes` bytes to the buffer, which has as many.
        unsafe {
            asm!(
                "rep insb",
                in("dx") port,
                inout("rdi") buffer.as_mut_ptr() => _,
                inout("rcx") bytes => _,
                options(nostack, preserves_flags)
            );
        }
        buffer
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod port {
    pub(super) fn write_byte(_: u16, _: u8) {}
    pub(super) fn write_word(_: u16, _: u16) {}
    pub(super) fn read(_: u16, bytes: usize) -> Vec<u8> {
        vec![0; bytes]
    }
}
