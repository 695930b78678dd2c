//! From a call's entry to its exit, by the place of the call on the stack.
//!
//! The start is kept in the slot of the CPU. A call that nests, sleeps, is interrupted by another of
//! the same handler, or leaves on another CPU is found by its frame.
//!
//! `crates/common/tests/pairing.rs` runs this file on the host, with an interrupt at each step.

use core::ptr::{addr_of, addr_of_mut};

use profiler_common::layout::{Displaced, Frame, SLOTS_MAX, Slot};

use crate::{
    memory::{BPF_ANY, BPF_NOEXIST, clock, exchange, load, same, store, vacate},
    place::{is_backwards, place_of},
    record::{record, record_fast, record_last},
    shared::add_one,
    state::{DISPLACED, cpus, end, handler, preempts, slot_of, this_cpu},
};

/// Notes when a call began, as the last thing it does.
#[inline(always)]
pub(crate) fn enter(frame: u64) {
    let slot = slot_of(this_cpu());
    let running;
    // SAFETY: `slot` points into SLOTS. Volatile, because an interrupt may come in anywhere.
    unsafe {
        running = load(addr_of!((*slot).frame));
        if running == 0 {
            store(addr_of_mut!((*slot).frame), frame);
            (*slot).entries += 1;
            // A copy that alone is kept across the call: so it takes the register that kept the frame.
            let kept = same(slot);
            store(addr_of_mut!((*kept).start), clock());
            end();
        }
    }
    enter_upon(slot, running, frame);
}

/// The same in a slot whose call has not left: all of it apart, so that the faster path has less to keep in registers.
#[inline(never)]
fn enter_upon(slot: *mut Slot, running: u64, frame: u64) -> u64 {
    displace(slot, running, frame);
    // SAFETY: as for `enter`.
    unsafe {
        store(addr_of_mut!((*slot).frame), frame);
        (*slot).entries += 1;
        store(addr_of_mut!((*slot).start), clock());
    }
    0
}

/// In the low bits of a slot's frame, which are free (frames are multiples of 8): the start is being
/// moved to the map, and may be in both places.
const MOVING: u64 = 1;
/// In their place: the exit has taken the start meanwhile. What is in the map, or will be, is nobody's.
const GONE: u64 = 2;
const MARKS: u64 = MOVING | GONE;

/// Makes room in a slot whose call has not left: the newer call is the likelier to leave first.
///
/// A CPU runs this at most once at a time (the kernel skips an entry program on top of itself), but where
/// tasks are preempted within programs one run may take long. Meanwhile A leaves on any CPU, and a later
/// call may have A's frame: its entry program is skipped on this CPU, its exit program is not. So that no
/// start is taken twice, both sides change the slot by an exchange, which one of them loses:
///
/// | slot's frame | start of A | changed by this program to | by the exit of A to |
/// |---|---|---|---|
/// | A | in the slot | A + MOVING | 0: nothing is left to move |
/// | A + MOVING | in the slot, and copied to the map | B, the newer call | A + GONE |
/// | A + GONE | taken, and perhaps still copied | B, once the copy is removed | - |
/// | B | in the map | - | B; it removes the map's |
///
/// A later call of A's frame that is displaced on another CPU while the slot says GONE is lost with the copy;
/// if it leaves before it is moved, it is counted as both lost and measured.
#[inline(never)]
fn displace(slot: *mut Slot, running: u64, frame: u64) -> u64 {
    // SAFETY: `slot` points into SLOTS. A start does not change while its frame is in the slot.
    unsafe {
        if running == frame {
            // A call cannot enter twice: the exit of the earlier one was never run.
            (*slot).lost += 1;
            return 0;
        }
        let place = addr_of_mut!((*slot).frame);
        let moving = running | MOVING;
        if exchange(place, running, moving) != running {
            return 0;
        }
        let key = Frame { frame: running, handler: handler() };
        let start = load(addr_of!((*slot).start));
        let displaced = Displaced { start, cpu: this_cpu() };
        let mut is_kept = true;
        if DISPLACED.insert(key, displaced, BPF_NOEXIST.into()).is_err() {
            // Full, or the leftover of an earlier call whose exit was never run.
            is_kept = DISPLACED.insert(key, displaced, BPF_ANY.into()).is_ok();
            (*slot).lost += u64::from(is_kept);
        }
        (*slot).displaced += 1;
        if exchange(place, moving, frame) == moving {
            (*slot).lost += u64::from(!is_kept);
        } else if is_kept {
            // Before the mark is overwritten, which keeps other exits from the copy.
            let _ = DISPLACED.remove(key);
        }
    }
    0
}

/// The start of a call that is not in the slot of the CPU it leaves on; 0 if it is nowhere.
///
/// If nothing takes a task off its CPU within programs, a start that is left over in the map, because the exit program of
/// its call was skipped, is of a call in an interrupt: later calls of its frame do not change the CPU. So the map comes
/// first, and a displaced call costs the same on any number of CPUs. Else a later call of that frame may be in a slot:
/// also where programs run with preemption off, because they are skipped while a task uses a map by a system call
/// (`bpf_disable_instrumentation`), and that task may be preempted.
#[inline(never)]
fn find_start(slot: *mut Slot, frame: u64) -> u64 {
    let mut start = if preempts() { 0 } else { take_displaced(frame) };
    if start == 0 {
        // `displace` writes the map before it gives up the slot: a start that is moved after the map was asked
        // is in a slot, or in the map by now.
        start = take_from_slots(slot, frame);
    }
    if start == 0 {
        start = take_displaced(frame);
    }
    if start == 0 || start == STALE {
        // SAFETY: `slot` points into SLOTS.
        unsafe { (*slot).unpaired_exits += 1 }
        return 0;
    }
    start
}

/// Returned instead of a start that another exit has taken already.
const STALE: u64 = u64::MAX;

/// The start of a call in the map, which is taken out of it; 0 if there is none. While it is moved it is taken from the
/// slot instead, by a mark: else a later call of the same frame might take it from there once more.
#[inline(never)]
fn take_displaced(frame: u64) -> u64 {
    let key = Frame { frame, handler: handler() };
    // SAFETY: the map's entry is of this call alone, or of one that user space has given up: who removes it has
    // it. The slot points into SLOTS.
    unsafe {
        let Some(found) = DISPLACED.get(key) else { return 0 };
        let (start, cpu) = (found.start, found.cpu);
        if cpu < cpus() && cpu < SLOTS_MAX as u64 {
            let slot = slot_of(cpu);
            let place = addr_of_mut!((*slot).frame);
            let marked = load(place);
            if marked & !MARKS == frame {
                if marked & GONE != 0 {
                    return 0;
                }
                // The slot's own start: what was found in the map may be left over from an earlier call of that frame.
                let moved = load(addr_of!((*slot).start));
                if marked & MOVING != 0 && exchange(place, marked, marked ^ MARKS) == marked {
                    return moved;
                }
            }
        }
        if DISPLACED.remove(key).is_ok() { start } else { 0 }
    }
}

/// The start of a call in the slot of another CPU, or one that is moved out of this one's; 0 if there is none.
#[inline(never)]
fn take_from_slots(slot: *mut Slot, frame: u64) -> u64 {
    let mut cpu = 0;
    let mut start = 0;
    while cpu < cpus() && cpu < SLOTS_MAX as u64 {
        let other = slot_of(cpu);
        // SAFETY: both point into SLOTS; a start does not change while its frame is in the slot.
        unsafe {
            let place = addr_of_mut!((*other).frame);
            if load(place) & !MARKS == frame {
                let kept = load(addr_of!((*other).start));
                let found = exchange(place, frame, 0);
                if found == frame {
                    (*slot).migrated += 1;
                    return kept;
                }
                if found & !MARKS == frame {
                    if found & GONE != 0 {
                        start = STALE;
                    } else if exchange(place, found, found ^ MARKS) == found {
                        (*slot).migrated += u64::from(other != slot);
                        return kept;
                    }
                }
            }
        }
        cpu += 1;
    }
    start
}

/// Finds the start of a call that leaves and counts its duration; `now` is the clock read first thing.
///
/// An interrupt may come in once the slot was found to be this call's. If it calls the handler, that call moves this one's start to
/// the map and writes its own, which is later than `now`; its exit is skipped, because this program runs. So that this shows without
/// a comparison more, the start is read last: the difference is then negative.
#[inline(always)]
pub(crate) fn leave<const MAGNITUDE: u32, const COUNTERS: usize>(frame: u64, now: u64) {
    let slot = slot_of(this_cpu());
    // SAFETY: `slot` points into SLOTS.
    unsafe {
        if load(addr_of!((*slot).frame)) != frame {
            leave_elsewhere::<MAGNITUDE, COUNTERS>(slot, frame, now);
            end();
        }
        vacate(slot);
        let start = load(addr_of!((*slot).start));
        let duration = now.wrapping_sub(start);
        if !record_fast::<MAGNITUDE, COUNTERS>(place_of(slot), duration) {
            leave_slowly::<MAGNITUDE, COUNTERS>(slot, frame, start, duration);
            end();
        }
    }
}

/// The same of a call that is not counted on the faster path. If its start was moved to the map meanwhile, it is taken out of there: a
/// later call of that frame might take it. The slot was emptied of the other call then, which is lost. A start that was overwritten
/// after that is lost instead, and this call counted as backwards.
#[inline(never)]
fn leave_slowly<const MAGNITUDE: u32, const COUNTERS: usize>(
    slot: *mut Slot,
    frame: u64,
    start: u64,
    mut duration: u64,
) -> u64 {
    if is_backwards(duration) {
        let moved = take_displaced(frame);
        if moved != 0 {
            duration = duration.wrapping_add(start).wrapping_sub(moved);
            // Atomically: an entry program may come in.
            // SAFETY: `slot` points into SLOTS.
            unsafe { add_one(addr_of_mut!((*slot).lost)) }
        }
    }
    // SAFETY: `slot` points into SLOTS.
    record::<MAGNITUDE, COUNTERS, false>(unsafe { place_of(slot) }, duration);
    0
}

/// The same where another task may run between two instructions of this, upon [`leave`] only an interrupt may. Two functions, because
/// one with a constant for the difference takes a jump more on the faster path.
#[inline(always)]
pub(crate) fn leave_preempted<const MAGNITUDE: u32, const COUNTERS: usize>(frame: u64, now: u64) {
    let slot = slot_of(this_cpu());
    // SAFETY: as for `leave`.
    unsafe {
        let start = load(addr_of!((*slot).start));
        let place = addr_of_mut!((*slot).frame);
        if load(place) != frame || exchange(place, frame, 0) != frame {
            leave_elsewhere::<MAGNITUDE, COUNTERS>(slot, frame, now);
            end();
        }
        record_last::<MAGNITUDE, COUNTERS>(place_of(slot), now.wrapping_sub(start));
    }
}

/// The same of a call whose start is not in this CPU's slot: all of it apart, so that the faster path has less to
/// keep in registers.
#[inline(never)]
fn leave_elsewhere<const MAGNITUDE: u32, const COUNTERS: usize>(
    slot: *mut Slot,
    frame: u64,
    now: u64,
) -> u64 {
    let start = find_start(slot, frame);
    if start != 0 {
        // SAFETY: `slot` points into SLOTS.
        let place = unsafe { place_of(slot) };
        record::<MAGNITUDE, COUNTERS, false>(place, now.wrapping_sub(start));
    }
    0
}
