//! Counting durations in the kernel.

use core::{
    arch::asm,
    ptr::{addr_of, addr_of_mut, read_volatile},
};

use aya_ebpf::helpers::generated::bpf_map_lookup_elem;
use profiler_common::{
    bucket::{HIGHEST_NS, index_above},
    layout::{LOOKED_UP, Record, Slot, operand},
};

use crate::{
    shared,
    state::{RECORDS, end, own_bytes, own_keys, record_at},
};

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

/// Counts a duration at a place.
#[inline(always)]
pub(crate) fn record<const MAGNITUDE: u32, const COUNTERS: usize>(place: u64, duration: u64) {
    if is_looked_up(place) {
        shared::record_looked_up::<MAGNITUDE, COUNTERS>(place, duration);
        return;
    }
    // SAFETY: what is not looked up is the offset of a record.
    unsafe { record_in::<MAGNITUDE, COUNTERS>(record_at(place), duration) }
}

/// The same as the last thing that a program does.
#[inline(always)]
pub(crate) fn record_last<const MAGNITUDE: u32, const COUNTERS: usize>(place: u64, duration: u64) {
    if is_looked_up(place) {
        shared::record_looked_up::<MAGNITUDE, COUNTERS>(place, duration);
        end();
    }
    // SAFETY: as in `record`.
    unsafe {
        let record = record_at(place);
        if duration >= 1 << MAGNITUDE {
            record_long::<MAGNITUDE, COUNTERS>(record, duration);
            end();
        }
        count::<COUNTERS>(record, duration as usize);
    }
}

/// Counts the own time of a call whose duration is counted at `place`, and in it the time that probes took.
#[inline(always)]
pub(crate) fn record_own<const MAGNITUDE: u32, const COUNTERS: usize>(
    mut place: u64,
    own: u64,
    probes: u64,
) {
    // SAFETY: hidden from the compiler, so that it compares once more: the verifier of 5.10 has forgotten by now what
    // the place is below.
    unsafe { asm!("/* {0} */", inout(reg) place, options(pure, nomem, nostack)) }
    if is_looked_up(place) {
        let place = place + own_keys();
        shared::record_looked_up::<MAGNITUDE, COUNTERS>(place, own);
        if probes != 0 {
            shared::add_probes(place, probes);
        }
        return;
    }
    // SAFETY: what is not looked up is the offset of a record, and where own time is told there is another
    // at that distance.
    unsafe {
        let record = record_at::<Record<COUNTERS>>(place + own_bytes());
        record_in::<MAGNITUDE, COUNTERS>(record, own);
        if probes != 0 {
            (*record).head.probes += probes;
        }
    }
}

/// # Safety
/// `record` must have COUNTERS counters.
#[inline(always)]
unsafe fn record_in<const MAGNITUDE: u32, const COUNTERS: usize>(
    record: *mut Record<COUNTERS>,
    duration: u64,
) {
    // SAFETY: the caller's.
    unsafe {
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
