//! Counting in records that something else may write at the same time: an interrupt, where the kernel
//! runs a program on top of itself, or another CPU. So counters are added to atomically, by the instruction that
//! is as old as BPF.

use core::{
    arch::asm,
    ptr::{addr_of_mut, read_volatile, write_volatile},
};

use profiler_common::layout::{NESTED_MAX, RecordHead};

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
/// `counter` must be one of a record.
#[inline(always)]
pub(crate) unsafe fn add_one_32(counter: *mut u32) {
    // SAFETY: the caller's; one atomic addition as above.
    unsafe { asm!("lock *(u32 *)({0} + 0) += {1}", in(reg) counter, in(reg) 1_u64) }
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
pub(crate) unsafe fn extend(head: *mut RecordHead, duration: u64) {
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
