//! Counting durations in records that something else may write at the same time: an interrupt, where the kernel
//! runs a program on top of itself, or another CPU. So counters are added to atomically, by the instruction that
//! is as old as BPF.

use core::{
    arch::asm,
    ptr::{addr_of_mut, read_volatile, write_volatile},
};

use profiler_common::{
    bucket::{HIGHEST_NS, index_above},
    layout::{NESTED_MAX, Record, RecordHead},
};

use crate::{
    place::{find_record, is_backwards, is_looked_up},
    state::record_at,
};

#[inline(always)]
pub(crate) fn add(counter: *mut u64, value: u64) {
    // SAFETY: one atomic addition to a field of a slot or record, which the verifier checks; the form
    // without a result is as old as BPF.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) value) }
}

#[inline(always)]
pub(crate) fn add_one(counter: *mut u64) {
    add(counter, 1);
}

/// # Safety
/// `record` must have COUNTERS counters, and `counter` be below that.
#[inline(always)]
unsafe fn count<const COUNTERS: usize>(record: *mut Record<COUNTERS>, counter: usize) {
    // SAFETY: the caller's; one atomic addition as above.
    unsafe {
        let counter = addr_of_mut!((*record).counts).cast::<u32>().add(counter);
        asm!("lock *(u32 *)({0} + 0) += {1}", in(reg) counter, in(reg) 1_u64);
    }
}

/// The shortest and the longest duration, of which there is one pair for each depth of runs: a run that
/// an interrupt makes between this one's comparison and its store updates another pair. User space takes
/// the extremes of all.
///
/// Where CPUs share a record, two that extend it at once may take one pair, and the extreme of one of them is
/// lost; counts and sums are not. That is so only of CPUs that came online later.
///
/// # Safety
/// `head` must be that of a record.
#[inline(always)]
unsafe fn extend(head: *mut RecordHead, duration: u64) {
    // SAFETY: the caller's. What runs on top of this comes back to the depth it found.
    unsafe {
        let depth = addr_of_mut!((*head).depth);
        add_one(depth);
        let below = read_volatile(depth).wrapping_sub(1);
        let (not_min, max) = if below == 0 {
            (addr_of_mut!((*head).not_min), addr_of_mut!((*head).max))
        } else {
            let mut at = (below - 1) & (NESTED_MAX as u64 - 1);
            // Hidden from the compiler, which would drop the mask where it knows better than the verifier.
            asm!("/* {0} */", inout(reg) at);
            at &= NESTED_MAX as u64 - 1;
            let pair = addr_of_mut!((*head).nested[at as usize]);
            (addr_of_mut!((*pair).not_min), addr_of_mut!((*pair).max))
        };
        if !duration > read_volatile(not_min) {
            write_volatile(not_min, !duration);
        }
        if duration > read_volatile(max) {
            write_volatile(max, duration);
        }
        add(depth, u64::MAX);
    }
}

/// Counts a duration in a record of the map.
#[inline(never)]
pub(crate) fn record_looked_up<const MAGNITUDE: u32, const COUNTERS: usize>(
    place: u64,
    duration: u64,
) -> u64 {
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

/// Counts a duration at a place, as `record::record` does, where an interrupt may do the same in between.
#[inline(always)]
pub(crate) fn record<const MAGNITUDE: u32, const COUNTERS: usize>(place: u64, duration: u64) {
    if is_looked_up(place) {
        record_looked_up::<MAGNITUDE, COUNTERS>(place, duration);
        return;
    }
    // The verifier takes atomic additions only at addresses that it knows to be aligned, as records are.
    let place = place & !63;
    // SAFETY: what is not looked up is the offset of a record.
    unsafe { record_in::<MAGNITUDE, COUNTERS>(record_at(place), duration) }
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

/// # Safety
/// `record` must have COUNTERS counters.
#[inline(never)]
unsafe fn record_long<const MAGNITUDE: u32, const COUNTERS: usize>(
    record: *mut Record<COUNTERS>,
    duration: u64,
) -> u64 {
    // SAFETY: the caller's.
    unsafe {
        let head = addr_of_mut!((*record).head);
        let mut counted = duration;
        if duration > HIGHEST_NS {
            if is_backwards(duration) {
                add_one(addr_of_mut!((*head).backwards));
                return 0;
            }
            add_one(addr_of_mut!((*head).over_range));
            counted = HIGHEST_NS;
        }
        add(addr_of_mut!((*head).sum), duration);
        extend(head, duration);
        let counter = index_above::<MAGNITUDE>(counted);
        if counter < COUNTERS {
            count(record, counter);
        }
    }
    0
}
