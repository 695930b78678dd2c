//! Counting durations in the kernel.

use core::ptr::addr_of_mut;

use profiler_common::{
    bucket::{HIGHEST_NS, index_above},
    layout::Record,
};

use crate::{
    place::{find_record, is_backwards, is_looked_up, is_shared},
    shared::{add, add_one_32, extend},
    state::{end, record_at},
};

/// Counts a duration at a place; `SHARED` where something else may write the record at the same time.
#[inline(always)]
pub(crate) fn record<const MAGNITUDE: u32, const COUNTERS: usize, const SHARED: bool>(
    place: u64,
    duration: u64,
) {
    if is_looked_up(place) {
        record_looked_up::<MAGNITUDE, COUNTERS, SHARED>(place, duration);
        return;
    }
    // The verifier takes atomic additions only at addresses that it knows to be aligned, as records are.
    let place = if SHARED { place & !63 } else { place };
    // SAFETY: what is not looked up is the offset of a record.
    unsafe { record_in::<MAGNITUDE, COUNTERS, SHARED>(record_at(place), duration) }
}

/// The same as the last thing that a program does.
#[inline(always)]
pub(crate) fn record_last<const MAGNITUDE: u32, const COUNTERS: usize>(place: u64, duration: u64) {
    if is_looked_up(place) {
        record_looked_up::<MAGNITUDE, COUNTERS, false>(place, duration);
        end();
    }
    // SAFETY: as in `record`.
    unsafe {
        let record = record_at(place);
        if duration >= 1 << MAGNITUDE {
            record_long::<MAGNITUDE, COUNTERS, false>(record, duration);
            end();
        }
        count::<COUNTERS, false>(record, duration as usize);
    }
}

/// The same where that is short; returns whether it was.
#[inline(always)]
pub(crate) fn record_fast<const MAGNITUDE: u32, const COUNTERS: usize>(
    place: u64,
    duration: u64,
) -> bool {
    if is_looked_up(place) {
        return false;
    }
    // SAFETY: as in `record`.
    unsafe {
        let record = record_at(place);
        if duration >= 1 << MAGNITUDE {
            return false;
        }
        count::<COUNTERS, false>(record, duration as usize);
    }
    true
}

/// Counts a duration in a record of the map: by additions as in the value, but atomically where CPUs share it.
#[inline(never)]
fn record_looked_up<const MAGNITUDE: u32, const COUNTERS: usize, const SHARED: bool>(
    place: u64,
    duration: u64,
) -> u64 {
    if !SHARED && is_shared(place) {
        return record_looked_up::<MAGNITUDE, COUNTERS, true>(place, duration);
    }
    // SAFETY: the record is checked and points to a value of RECORDS, whose size user space made that of
    // `Record<COUNTERS>`.
    unsafe {
        let record = find_record::<COUNTERS>(place);
        if !record.is_null() {
            record_in::<MAGNITUDE, COUNTERS, SHARED>(record, duration);
        }
    }
    0
}

/// # Safety
/// `record` must have COUNTERS counters.
#[inline(always)]
unsafe fn record_in<const MAGNITUDE: u32, const COUNTERS: usize, const SHARED: bool>(
    record: *mut Record<COUNTERS>,
    duration: u64,
) {
    // SAFETY: the caller's.
    unsafe {
        if duration < 1 << MAGNITUDE {
            count::<COUNTERS, SHARED>(record, duration as usize);
        } else {
            record_long::<MAGNITUDE, COUNTERS, SHARED>(record, duration);
        }
    }
}

/// # Safety
/// `record` must have COUNTERS counters, and `counter` be below that.
#[inline(always)]
unsafe fn count<const COUNTERS: usize, const SHARED: bool>(
    record: *mut Record<COUNTERS>,
    counter: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let counter = addr_of_mut!((*record).counts).cast::<u32>().add(counter);
        if SHARED { add_one_32(counter) } else { *counter += 1 }
    }
}

/// # Safety
/// `counter` must be a field of a record.
#[inline(always)]
unsafe fn add_to<const SHARED: bool>(counter: *mut u64, value: u64) {
    // SAFETY: the caller's.
    if SHARED { add(counter, value) } else { unsafe { *counter += value } }
}

/// Counts a duration whose counter spans more than a nanosecond, with what the counter leaves out.
///
/// # Safety
/// `record` must have COUNTERS counters.
#[inline(never)]
unsafe fn record_long<const MAGNITUDE: u32, const COUNTERS: usize, const SHARED: bool>(
    record: *mut Record<COUNTERS>,
    duration: u64,
) -> u64 {
    // SAFETY: the caller's.
    unsafe {
        let head = addr_of_mut!((*record).head);
        let mut counted = duration;
        if duration > HIGHEST_NS {
            if is_backwards(duration) {
                add_to::<SHARED>(addr_of_mut!((*head).backwards), 1);
                return 0;
            }
            add_to::<SHARED>(addr_of_mut!((*head).over_range), 1);
            counted = HIGHEST_NS;
        }
        add_to::<SHARED>(addr_of_mut!((*head).sum), duration);
        if SHARED {
            extend(head, duration);
        } else {
            if !duration > (*head).not_min {
                (*head).not_min = !duration;
            }
            if duration > (*head).max {
                (*head).max = duration;
            }
        }
        let counter = index_above::<MAGNITUDE>(counted);
        if counter < COUNTERS {
            count::<COUNTERS, SHARED>(record, counter);
        }
    }
    0
}
