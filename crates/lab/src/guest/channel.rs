//! The guest's end of its channel to the host: jobs by QEMU's fw_cfg device, answers in memory.
//!
//! An access to a device is done by QEMU before the next instruction runs, so no time passes in the guest, and no interrupt tells
//! of the host's speed. To answer, the guest stops its machine by a write to the pvpanic device; the host then reads the answer
//! from the memory of this process and may take a snapshot there.

use std::io;
use std::num::NonZeroUsize;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::unistd::Pid;

use super::arch::{Devices, clock};
use crate::wire::{Answer, FILES, HEADER, Header, JOBS, Job, MAGIC};

/// Key of fw_cfg's list of files (QEMU's `docs/specs/fw_cfg.rst`); each has size, key, two bytes and a name.
const DIRECTORY: u16 = 0x19;
const ENTRY_BYTES: usize = 64;
const NAME_AT: usize = 8;

/// Bytes of the page that holds the header.
const PAGE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Ticks of the CPU's counter after a stop at which a guest goes on: three timer interrupts, as the kernel has one in 4 ms. Under
/// virtual time a tick is an instruction.
///
/// QEMU lets time skip to the next timer while all CPUs are idle, and one that has just stopped the machine may seem so to its
/// main loop or not (`icount_start_warp_timer` in softmmu/icount.c, `cpu_thread_is_idle` in softmmu/cpus.c). Either way the
/// same interrupts have come by this time.
const ALIGNED: u64 = 12_000_000;

/// Ticks in which an interrupt that came last is done.
const MARGIN: u64 = 200_000;

/// The channel, of which a guest has one.
pub(super) struct Channel {
    devices: Devices,
    header: *mut Header,
}

impl Channel {
    /// Opens it.
    ///
    /// # Errors
    /// If the kernel refuses the devices or the address of the header.
    pub(super) fn open() -> io::Result<Self> {
        let devices = Devices::open()?;
        let at = NonZeroUsize::new(HEADER as usize);
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping; `MAP_FIXED_NOREPLACE` replaces none.
        let page = unsafe { mmap_anonymous(at, PAGE, access, flags) }?;
        Ok(Self { devices, header: page.as_ptr().cast() })
    }

    /// The jobs that the host has for this guest now.
    ///
    /// # Errors
    /// If there is no such item, or it is damaged.
    pub(super) fn jobs(&self) -> io::Result<Vec<Job>> {
        Ok(serde_json::from_slice(&self.item(JOBS)?)?)
    }

    /// The files of the jobs.
    ///
    /// # Errors
    /// If there is no such item.
    pub(super) fn files(&self) -> io::Result<Vec<u8>> {
        self.item(FILES)
    }

    /// Answers, and stops the machine until the host lets it go on.
    pub(super) fn answer(&mut self, answer: &Answer, attachment: &[u8]) {
        let text = serde_json::to_vec(answer).unwrap_or_default();
        let [[at, bytes], [attached, more]] =
            [&*text, attachment].map(|bytes| [bytes.as_ptr() as u64, bytes.len() as u64]);
        let header: Header = [MAGIC, at, bytes, attached, more];
        // SAFETY: `open` mapped the page, and nothing else uses it.
        unsafe { self.header.write_volatile(header) };
        // The host reads memory as the first CPU sees it.
        let this = Pid::from_raw(0);
        let allowed = sched_getaffinity(this).unwrap_or_default();
        let mut first = CpuSet::new();
        let _ = first.set(0).and_then(|()| sched_setaffinity(this, &first));
        let stopped = clock::read();
        self.devices.pause();
        align(stopped + ALIGNED);
        let _ = sched_setaffinity(this, &allowed);
    }

    /// The bytes of an item of fw_cfg.
    fn item(&self, name: &str) -> io::Result<Vec<u8>> {
        self.devices.select(DIRECTORY);
        let count = u32::from_be_bytes(self.devices.read(4).try_into().unwrap_or_default());
        for _ in 0..count {
            let entry = self.devices.read(ENTRY_BYTES);
            let named = entry[NAME_AT..].split(|byte| *byte == 0).next() == Some(name.as_bytes());
            if let (true, [a, b, c, d, high, low, ..]) = (named, entry.as_slice()) {
                self.devices.select(u16::from_be_bytes([*high, *low]));
                return Ok(self.devices.read(u32::from_be_bytes([*a, *b, *c, *d]) as usize));
            }
        }
        Err(io::Error::other(format!(
            "QEMU has no fw_cfg item {name}: this program runs as the first process of a lab's guest alone"
        )))
    }
}

/// Waits until `at` on the CPU's counter, under virtual time to the instruction.
fn align(at: u64) {
    let mut now = clock::read();
    while now < at {
        // Half of what is left, as interrupts take ticks, too.
        clock::spin(((at - now) / 2 / clock::TURN).max(1));
        now = clock::read();
    }
    let left = (at + MARGIN).saturating_sub(now);
    clock::take((left / 2).max(1), left % 2);
}
