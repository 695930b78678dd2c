//! Counting durations in the kernel.

use core::{
    arch::asm,
    ptr::{addr_of, addr_of_mut, write_volatile},
};

use aya_ebpf::helpers::generated::bpf_map_lookup_elem;
use profiler_common::{
    bucket::{HIGHEST_NS, index_above},
    layout::Record,
};

use crate::state::{RECORDS, phase};

/// Puts the key of this CPU's record on the caller's stack: so it need not outlive what follows.
///
/// # Safety
/// `key` must be valid for writing.
#[inline(always)]
pub(crate) unsafe fn note_key(key: *mut u32, cpu: u64) {
    // SAFETY: the caller's.
    unsafe { write_volatile(key, phase() + cpu as u32) }
}

/// Whether a difference of two times is that of a clock that has stepped back, such as between two CPUs.
#[inline(always)]
pub(crate) const fn is_backwards(duration: u64) -> bool {
    duration > i64::MAX as u64
}

/// The record of `key`; null if there is none.
///
/// # Safety
/// User space must have made the values of RECORDS no smaller than what is used of a `Record<COUNTERS>`.
#[inline(always)]
pub(crate) unsafe fn find_record<const COUNTERS: usize>(key: &u32) -> *mut Record<COUNTERS> {
    // SAFETY: a map and a key of its size.
    unsafe {
        bpf_map_lookup_elem(addr_of!(RECORDS).cast_mut().cast(), (&raw const *key).cast()).cast()
    }
}

/// Counts a duration in the record of `key`.
#[inline(always)]
pub(crate) fn record<const MAGNITUDE: u32, const COUNTERS: usize>(key: &u32, mut duration: u64) {
    // SAFETY: `record` is checked and points to a value of RECORDS, whose size user space made that
    // of `Record<COUNTERS>`.
    unsafe {
        // Worked out here, so that one value and not two has to be kept across the helper's call.
        asm!("/* {0} */", inout(reg) duration);
        let record = find_record::<COUNTERS>(key);
        if record.is_null() {
            return;
        }
        if duration < 1 << MAGNITUDE {
            count(record, duration as usize);
        } else {
            record_long::<MAGNITUDE, COUNTERS>(record, duration);
        }
    }
}

#[inline(always)]
unsafe fn count<const COUNTERS: usize>(record: *mut Record<COUNTERS>, counter: usize) {
    // SAFETY: the caller's record has COUNTERS counters, and `counter` is below that.
    unsafe { *addr_of_mut!((*record).counts).cast::<u32>().add(counter) += 1 }
}

/// Counts a duration whose counter spans more than a nanosecond, with what the counter leaves out.
#[inline(never)]
unsafe fn record_long<const MAGNITUDE: u32, const COUNTERS: usize>(
    record: *mut Record<COUNTERS>,
    duration: u64,
) -> u64 {
    // SAFETY: as for `record`.
    unsafe {
        let head = addr_of_mut!((*record).head);
        let mut counted = duration;
        if duration > HIGHEST_NS {
            if is_backwards(duration) {
                (*head).backwards += 1;
                return 0;
            }
            (*head).over_range += 1;
            counted = HIGHEST_NS;
        }
        (*head).sum += duration;
        if !duration > (*head).not_min {
            (*head).not_min = !duration;
        }
        if duration > (*head).max {
            (*head).max = duration;
        }
        let counter = index_above::<MAGNITUDE>(counted);
        if counter < COUNTERS {
            count(record, counter);
        }
    }
    0
}
