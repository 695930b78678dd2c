//! fentry and fexit, kprobes and kretprobes for kernels without atomic compare and exchange (before
//! 5.12, commit 5ffa25502b5a): every start is in the map of displaced ones, whose operations are
//! atomic.
//!
//! Such kernels also run a program on top of itself, when an interrupt comes in (they have no
//! `bpf_prog->active`), so counters are added to atomically. They do not preempt a task within a program:
//! runs on one CPU lie on top of one another, and the upper one ends first.

use core::{
    arch::asm,
    ptr::{addr_of_mut, read_volatile, write_volatile},
};

use aya_ebpf::{
    EbpfContext as _,
    bindings::{BPF_ANY, BPF_NOEXIST},
    helpers::generated::bpf_ktime_get_ns,
    macros::{fentry, fexit, kprobe},
    programs::{FEntryContext, FExitContext, ProbeContext},
};
use profiler_common::{
    bucket::{COUNTERS_2, COUNTERS_3, HIGHEST_NS, MAGNITUDE_2, MAGNITUDE_3, index_above},
    layout::{Displaced, Frame, NESTED_MAX, Record, RecordHead},
};

use crate::{
    record::{find_record, is_backwards, note_key},
    registers::{frame_at_exit, stack_pointer},
    state::{DISPLACED, handler, slot_of, this_cpu},
};

#[inline(always)]
fn add(counter: *mut u64, value: u64) {
    // SAFETY: one atomic addition to a field of a slot or record, which the verifier checks; the form
    // without a result is as old as BPF.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) value) }
}

#[inline(always)]
fn add_one(counter: *mut u64) {
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

/// Counts a duration in the record of `key`, as `record::record` does, where an interrupt may do the same
/// in between.
#[inline(always)]
fn record<const MAGNITUDE: u32, const COUNTERS: usize>(key: &u32, duration: u64) {
    // SAFETY: `record` is checked and points to a value of RECORDS, whose size user space made that
    // of `Record<COUNTERS>`.
    unsafe {
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

#[inline(always)]
fn enter(frame: u64) {
    let slot = slot_of(this_cpu());
    // SAFETY: `slot` points into SLOTS.
    unsafe {
        add_one(addr_of_mut!((*slot).entries));
        let key = Frame { frame, handler: handler() };
        let displaced = Displaced { start: bpf_ktime_get_ns() };
        if DISPLACED.insert(key, displaced, BPF_NOEXIST.into()).is_err() {
            add_one(addr_of_mut!((*slot).lost));
            let _ = DISPLACED.insert(key, displaced, BPF_ANY.into());
        }
    }
}

#[inline(always)]
fn leave<const MAGNITUDE: u32, const COUNTERS: usize>(frame: u64, now: u64) {
    let cpu = this_cpu();
    let mut key = 0;
    let frame = Frame { frame, handler: handler() };
    // SAFETY: the map's entry belongs to this call alone, which removes it itself; `key` is on this
    // function's stack, and the slot points into SLOTS.
    let start = unsafe {
        note_key(&raw mut key, cpu);
        match DISPLACED.get(frame) {
            Some(found) => {
                let start = found.start;
                let _ = DISPLACED.remove(frame);
                start
            }
            None => {
                add_one(addr_of_mut!((*slot_of(cpu)).unpaired_exits));
                return;
            }
        }
    };
    record::<MAGNITUDE, COUNTERS>(&key, now.wrapping_sub(start));
}

/// On entry by the trampoline: notes when the call began.
#[fentry]
pub fn hashed_enter(ctx: FEntryContext) -> i32 {
    enter(ctx.as_ptr() as u64);
    0
}

/// On exit by the trampoline, with 2 significant digits.
#[fexit]
pub fn hashed_leave_2(ctx: FExitContext) -> i32 {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    leave::<MAGNITUDE_2, COUNTERS_2>(ctx.as_ptr() as u64, now);
    0
}

/// On exit by the trampoline, with 3 significant digits.
#[fexit]
pub fn hashed_leave_3(ctx: FExitContext) -> i32 {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    leave::<MAGNITUDE_3, COUNTERS_3>(ctx.as_ptr() as u64, now);
    0
}

/// On entry by a kprobe: notes when the call began.
#[kprobe]
pub fn hashed_regs_enter(ctx: ProbeContext) -> u32 {
    enter(stack_pointer(&ctx));
    0
}

/// On exit by a kretprobe, with 2 significant digits.
#[kprobe]
pub fn hashed_regs_leave_2(ctx: ProbeContext) -> u32 {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    leave::<MAGNITUDE_2, COUNTERS_2>(frame_at_exit(&ctx), now);
    0
}

/// On exit by a kretprobe, with 3 significant digits.
#[kprobe]
pub fn hashed_regs_leave_3(ctx: ProbeContext) -> u32 {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    leave::<MAGNITUDE_3, COUNTERS_3>(frame_at_exit(&ctx), now);
    0
}
