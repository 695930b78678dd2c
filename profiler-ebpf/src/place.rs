//! Where durations are counted: a record in the handler's value, or one that is looked up.

use core::ptr::{addr_of, read_volatile};

use aya_ebpf::helpers::generated::bpf_map_lookup_elem;
use profiler_common::layout::{LOOKED_UP, PHASES, Record, Slot, operand};

use crate::state::RECORDS;

/// Where a CPU's calls are counted now, see [`Slot::record`]. Read once for each call: user space changes it.
///
/// # Safety
/// `slot` must point into SLOTS.
#[inline(always)]
pub(crate) unsafe fn place_of(slot: *mut Slot) -> u64 {
    // SAFETY: the caller's.
    unsafe { read_volatile(addr_of!((*slot).record)) }
}

/// Whether a place is not in the handler's value but in the map.
#[inline(always)]
pub(crate) const fn is_looked_up(place: u64) -> bool {
    place > operand::LAST_RECORD as u64
}

/// Whether a difference of two times is that of a clock that has stepped back, such as between two CPUs.
#[inline(always)]
pub(crate) const fn is_backwards(duration: u64) -> bool {
    duration > i64::MAX as u64
}

/// The record of a place that is looked up; null if there is none.
///
/// # Safety
/// User space must have made the values of RECORDS no smaller than what is used of a `Record<COUNTERS>`.
#[inline(always)]
pub(crate) unsafe fn find_record<const COUNTERS: usize>(place: u64) -> *mut Record<COUNTERS> {
    let key = (place & (LOOKED_UP - 1)) as u32;
    // SAFETY: a map and a key of its size.
    unsafe {
        bpf_map_lookup_elem(addr_of!(RECORDS).cast_mut().cast(), (&raw const key).cast()).cast()
    }
}

/// Whether a place that is looked up is of several CPUs: of those that came online later.
#[inline(always)]
pub(crate) const fn is_shared(place: u64) -> bool {
    place & (LOOKED_UP - 1) < PHASES as u64
}
