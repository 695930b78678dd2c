//! Counting durations in the kernel.

use core::ptr::addr_of_mut;

use profiler_common::{
    bucket::{HIGHEST_NS, index_above},
    layout::Record,
};

use crate::{
    place::{find_record, is_backwards, is_looked_up, is_shared},
    shared,
    state::{end, record_at},
};

/// Counts a duration at a place.
#[inline(always)]
pub(crate) fn record<const MAGNITUDE: u32, const COUNTERS: usize>(place: u64, duration: u64) {
    if is_looked_up(place) {
        record_looked_up::<MAGNITUDE, COUNTERS>(place, duration);
        return;
    }
    // SAFETY: what is not looked up is the offset of a record.
    unsafe { record_in::<MAGNITUDE, COUNTERS>(record_at(place), duration) }
}

/// The same as the last thing that a program does.
#[inline(always)]
pub(crate) fn record_last<const MAGNITUDE: u32, const COUNTERS: usize>(place: u64, duration: u64) {
    if is_looked_up(place) {
        record_looked_up::<MAGNITUDE, COUNTERS>(place, duration);
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
        count::<COUNTERS>(record, duration as usize);
    }
    true
}

/// Counts a duration in a record of the map: by additions as in the value, but atomically where CPUs share it.
#[inline(never)]
fn record_looked_up<const MAGNITUDE: u32, const COUNTERS: usize>(place: u64, duration: u64) -> u64 {
    if is_shared(place) {
        return shared::record_looked_up::<MAGNITUDE, COUNTERS>(place, duration);
    }
    // SAFETY: the record is checked and points to a value of RECORDS, whose size user space made that of
    // `Record<COUNTERS>`.
    unsafe {
        let record = find_record::<COUNTERS>(place);
        if !record.is_null() {
            record_in::<MAGNITUDE, COUNTERS>(record, duration);
        }
    }
    0
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
