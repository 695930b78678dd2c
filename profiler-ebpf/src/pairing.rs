//! From a call's entry to its exit, by the place of the call on the stack.
//!
//! The start is kept in the slot of the CPU. A call that nests, sleeps, is interrupted by another of
//! the same handler, or leaves on another CPU is found by its frame.

use core::{
    arch::asm,
    ptr::{addr_of, addr_of_mut, read_volatile, write_volatile},
};

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_NOEXIST},
    helpers::generated::bpf_ktime_get_ns,
};
use profiler_common::layout::{Displaced, Frame, SLOTS_MAX, Slot};

use crate::{
    record::{note_key, record},
    state::{DISPLACED, cpus, handler, slot_of, this_cpu},
};

/// Replaces `*frame` by `new` if it is `old`; returns what was there.
#[inline(always)]
fn exchange_frame(frame: *mut u64, old: u64, new: u64) -> u64 {
    let found;
    // SAFETY: one atomic instruction on a field of a slot, which the verifier checks; written
    // out because the target's `core` has no compare and exchange.
    unsafe {
        asm!(
            "r0 = cmpxchg_64(r1 + 0, r0, r2)",
            inlateout("r0") old => found,
            in("r1") frame,
            in("r2") new,
        );
    }
    found
}

/// Frees a slot: one instruction, where the compiler would take two.
#[inline(always)]
fn vacate(slot: *mut Slot) {
    const { assert!(core::mem::offset_of!(Slot, frame) == 0) };
    // SAFETY: a store of 8 bytes to a field of a slot, which the verifier checks.
    unsafe { asm!("*(u64 *)({slot} + 0) = 0", slot = in(reg) slot) }
}

/// Notes when a call began, as the last thing it does.
#[inline(always)]
pub(crate) fn enter(frame: u64) {
    let slot = slot_of(this_cpu());
    // SAFETY: `slot` points into SLOTS. Volatile, because an interrupt may come in anywhere.
    unsafe {
        let running = read_volatile(addr_of!((*slot).frame));
        if running != 0 {
            displace(slot, running, frame);
        }
        write_volatile(addr_of_mut!((*slot).frame), frame);
        (*slot).entries += 1;
        write_volatile(addr_of_mut!((*slot).start), bpf_ktime_get_ns());
    }
}

/// Makes room in a slot whose call has not left: the newer call is the likelier to leave first.
#[inline(never)]
fn displace(slot: *mut Slot, running: u64, frame: u64) -> u64 {
    // SAFETY: `slot` points into SLOTS. The start is read before the frame is given up, and only
    // this CPU's entry program, which never runs on top of itself, replaces both.
    unsafe {
        if running == frame {
            // A call cannot enter twice: the exit of the earlier one was never run.
            (*slot).lost += 1;
            return 0;
        }
        let key = Frame { frame: running, handler: handler() };
        let displaced = Displaced { start: read_volatile(addr_of!((*slot).start)) };
        if DISPLACED.insert(key, displaced, BPF_NOEXIST.into()).is_err() {
            // Full, or the leftover of an earlier call whose exit was never run.
            (*slot).lost += 1;
            let _ = DISPLACED.insert(key, displaced, BPF_ANY.into());
        }
        (*slot).displaced += 1;
        if exchange_frame(addr_of_mut!((*slot).frame), running, frame) != running {
            // The call has migrated and left meanwhile: it took its start from the slot.
            let _ = DISPLACED.remove(key);
        }
    }
    0
}

/// The start of a call that is not in the slot of the CPU it leaves on; 0 if it is nowhere.
#[inline(never)]
fn find_start(slot: *mut Slot, frame: u64) -> u64 {
    // Slots first: `displace` writes the map before it gives up the slot, so a start that is
    // moved meanwhile is seen in at least one of the two.
    let mut cpu = 0;
    while cpu < cpus() && cpu < SLOTS_MAX as u64 {
        let other = slot_of(cpu);
        // SAFETY: both point into SLOTS; a start does not change while its frame is in the slot.
        unsafe {
            if read_volatile(addr_of!((*other).frame)) == frame {
                let start = read_volatile(addr_of!((*other).start));
                if exchange_frame(addr_of_mut!((*other).frame), frame, 0) == frame {
                    (*slot).migrated += 1;
                    return start;
                }
            }
        }
        cpu += 1;
    }
    let key = Frame { frame, handler: handler() };
    // SAFETY: the entry belongs to this call alone, which removes it itself.
    unsafe {
        if let Some(found) = DISPLACED.get(key) {
            let start = found.start;
            let _ = DISPLACED.remove(key);
            return start;
        }
        (*slot).unpaired_exits += 1;
    }
    0
}

/// Frees a slot that another call may have taken between the look at it and this: then the start of this
/// one was displaced.
#[inline(always)]
fn give_up(slot: *mut Slot, frame: u64) {
    // SAFETY: `slot` points into SLOTS.
    unsafe {
        if exchange_frame(addr_of_mut!((*slot).frame), frame, 0) != frame {
            let _ = DISPLACED.remove(Frame { frame, handler: handler() });
        }
    }
}

/// Finds the start of a call that leaves and counts its duration; `now` is the clock read first thing.
#[inline(always)]
pub(crate) fn leave<const MAGNITUDE: u32, const COUNTERS: usize>(frame: u64, now: u64) {
    let cpu = this_cpu();
    let slot = slot_of(cpu);
    let mut key = 0;
    // SAFETY: `slot` points into SLOTS, `key` to this function's stack.
    unsafe {
        note_key(&raw mut key, cpu);
        // The start before the frame: an interrupt between the two changes the frame, too.
        let mut start = read_volatile(addr_of!((*slot).start));
        if read_volatile(addr_of!((*slot).frame)) == frame {
            vacate(slot);
        } else {
            start = find_start(slot, frame);
            if start == 0 {
                return;
            }
        }
        record::<MAGNITUDE, COUNTERS>(&key, now.wrapping_sub(start));
    }
}

/// The same where another task may run between two instructions of this. Upon [`leave`] only an
/// interrupt may, whose calls have left when that goes on, or their exits were skipped. Apart, so that the
/// code of the one does not move the other's.
#[inline(always)]
pub(crate) fn leave_preempted<const MAGNITUDE: u32, const COUNTERS: usize>(frame: u64, now: u64) {
    let cpu = this_cpu();
    let slot = slot_of(cpu);
    let mut key = 0;
    // SAFETY: as for `leave`.
    unsafe {
        note_key(&raw mut key, cpu);
        let mut start = read_volatile(addr_of!((*slot).start));
        if read_volatile(addr_of!((*slot).frame)) == frame {
            give_up(slot, frame);
        } else {
            start = find_start(slot, frame);
            if start == 0 {
                return;
            }
        }
        record::<MAGNITUDE, COUNTERS>(&key, now.wrapping_sub(start));
    }
}
