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
    bindings::{BPF_ANY, BPF_NOEXIST},
    helpers::generated::bpf_ktime_get_ns,
    macros::{fentry, fexit, kprobe},
    programs::{FEntryContext, FExitContext, ProbeContext},
};
use profiler_common::{
    bucket::{COUNTERS_2, COUNTERS_3, MAGNITUDE_2, MAGNITUDE_3},
    layout::{Displaced, Frame},
};

use crate::{
    place::place_of,
    registers::{frame_at_exit, stack_pointer},
    shared::{add_one, record},
    state::{DISPLACED, handler, slot_of, this_cpu},
};

#[inline(always)]
fn enter(frame: u64) {
    let slot = slot_of(this_cpu());
    // SAFETY: `slot` points into SLOTS.
    unsafe {
        add_one(addr_of_mut!((*slot).entries));
        let key = Frame { frame, handler: handler() };
        let displaced = Displaced { start: bpf_ktime_get_ns(), cpu: 0 };
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
    record::<MAGNITUDE, COUNTERS>(place, now.wrapping_sub(start));
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
