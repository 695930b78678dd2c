//! fentry and fexit, kprobes and kretprobes for kernels without atomic compare and exchange (before
//! 5.12, commit 5ffa25502b5a): every start is in the map of displaced ones, whose operations are
//! atomic.
//!
//! Such kernels also run a program on top of itself, when an interrupt comes in (they have no
//! `bpf_prog->active`), so counters are added to atomically. They do not preempt a task within a program:
//! runs on one CPU lie on top of one another, and the upper one ends first.

use core::ptr::addr_of_mut;

use aya_ebpf::{
    EbpfContext as _,
    macros::{fentry, fexit, kprobe},
    programs::{FEntryContext, FExitContext, ProbeContext},
};
use profiler_common::layout::{Displaced, Frame};

use crate::{
    memory::{BPF_ANY, BPF_NOEXIST, clock},
    place::place_of,
    record::record,
    registers::{frame_at_exit, stack_pointer},
    shared::add_one,
    state::{DISPLACED, handler, slot_of, this_cpu},
};

#[inline(always)]
fn enter(frame: u64) {
    let slot = slot_of(this_cpu());
    // SAFETY: `slot` points into SLOTS.
    unsafe {
        add_one(addr_of_mut!((*slot).entries));
        let key = Frame { frame, handler: handler() };
        let displaced = Displaced { start: clock(), cpu: 0 };
        if DISPLACED.insert(key, displaced, BPF_NOEXIST.into()).is_err() {
            add_one(addr_of_mut!((*slot).lost));
            let _ = DISPLACED.insert(key, displaced, BPF_ANY.into());
        }
    }
}

#[inline(always)]
fn leave<const MAGNITUDE: u32, const COUNTERS: usize>(frame: u64, now: u64) {
    let slot = slot_of(this_cpu());
    let frame = Frame { frame, handler: handler() };
    // SAFETY: the map's entry belongs to this call alone, which removes it itself; the slot points
    // into SLOTS.
    let (start, place) = unsafe {
        let start = match DISPLACED.get(frame) {
            Some(found) => {
                let start = found.start;
                let _ = DISPLACED.remove(frame);
                start
            }
            None => {
                add_one(addr_of_mut!((*slot).unpaired_exits));
                return;
            }
        };
        (start, place_of(slot))
    };
    record::<MAGNITUDE, COUNTERS, true>(place, now.wrapping_sub(start));
}

/// On entry by the trampoline: notes when the call began.
#[fentry]
pub fn hashed_enter(ctx: FEntryContext) -> i32 {
    enter(ctx.as_ptr() as u64);
    0
}

/// On exit by the trampoline.
#[inline(always)]
fn trampoline_leave<const MAGNITUDE: u32, const COUNTERS: usize>(ctx: &FExitContext) {
    let now = clock();
    leave::<MAGNITUDE, COUNTERS>(ctx.as_ptr() as u64, now);
}
with_digits!(fexit, hashed_leave_2, hashed_leave_3, trampoline_leave(FExitContext) -> i32);

/// On entry by a kprobe: notes when the call began.
#[kprobe]
pub fn hashed_regs_enter(ctx: ProbeContext) -> u32 {
    enter(stack_pointer(&ctx));
    0
}

/// On exit by a kretprobe.
#[inline(always)]
fn regs_leave<const MAGNITUDE: u32, const COUNTERS: usize>(ctx: &ProbeContext) {
    let now = clock();
    leave::<MAGNITUDE, COUNTERS>(frame_at_exit(ctx), now);
}
with_digits!(kprobe, hashed_regs_leave_2, hashed_regs_leave_3, regs_leave(ProbeContext) -> u32);
