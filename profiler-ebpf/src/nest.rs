//! Calls' own time: without the calls of probed handlers within them, and without those calls' probes.
//!
//! Each task has a stack of its calls under way, of all handlers. A call that leaves adds what it took
//! to the call around it: from its start to the end of its exit program, as read from the clock, and
//! what its probes take outside of that, which user space has measured. An interrupt's calls are
//! within the call that they came upon, as its duration holds them, too.
//!
//! Starts are kept here alone, so recursion, sleep, migration and interrupts cost nothing more. A call
//! whose exit program was not run stays until the call around it leaves, or one begins in its place.

use core::{
    arch::asm,
    ptr::{addr_of, addr_of_mut, null_mut, read_volatile, write_volatile},
};

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::generated::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
};
use profiler_common::layout::{LEVELS_MAX, Level, Nest, Slot};

use crate::{
    place::{is_backwards, place_of},
    record::{record, record_own},
    shared::add,
    state::{NESTS, handler, inside, outside, slot_of, this_cpu},
};

/// Idle tasks of all CPUs have number 0: each gets one of its own.
const IDLE: u64 = 1 << 32;

/// Bytes of a task's kernel stack, or fewer: a call within another is below it.
const STACK_BYTES: u64 = 16 << 10;

const BEFORE_START: u64 = u64::MAX;

/// A task's first call, which has its place from the moment that the task has a nest: an interrupt
/// that finds it adds its own calls above.
static FIRST: Nest = {
    let level = Level { frame: 0, handler: 0, start: BEFORE_START, within: 0, probes: 0 };
    Nest { depth: 1, levels: [level; LEVELS_MAX] }
};

#[inline(always)]
fn current(cpu: u64) -> u64 {
    // SAFETY: helper without arguments.
    let task = (unsafe { bpf_get_current_pid_tgid() }) & 0xffff_ffff;
    if task == 0 { IDLE | cpu } else { task }
}

/// # Safety
/// `nest` must point into NESTS.
#[inline(always)]
unsafe fn level_at(nest: *mut Nest, at: u64) -> *mut Level {
    let mut at = at & (LEVELS_MAX as u64 - 1);
    // SAFETY: below the number of levels. Hidden from the compiler, which would drop the mask where it
    // knows better than the verifier.
    unsafe {
        asm!("/* {0} */", inout(reg) at);
        at &= LEVELS_MAX as u64 - 1;
        addr_of_mut!((*nest).levels).cast::<Level>().add(at as usize)
    }
}

/// The place of a task's first call.
#[inline(never)]
fn first(task: u64) -> *mut Level {
    let _ = NESTS.insert(&task, &FIRST, BPF_NOEXIST.into());
    // SAFETY: what is found points into NESTS.
    NESTS.get_ptr_mut(&task).map_or(null_mut(), |nest| unsafe { level_at(nest, 0) })
}

/// The place of a call within others; null if they are too many.
#[inline(always)]
fn push<const STACK: bool>(nest: *mut Nest, slot: *mut Slot, frame: u64) -> *mut Level {
    // SAFETY: `nest` points into NESTS, `slot` into SLOTS.
    unsafe {
        let mut depth = read_volatile(addr_of!((*nest).depth));
        if depth > 0 {
            let top = level_at(nest, depth - 1);
            // Compared and not subtracted, which the verifier forbids for the context's address.
            let lowest = (*top).frame;
            let mut end = lowest.wrapping_add(if STACK { STACK_BYTES } else { 1 });
            asm!("/* {0} */", inout(reg) end);
            if frame >= lowest && frame < end {
                // It cannot be under way: its place on the stack is free again.
                if (*top).handler == handler() {
                    (*slot).lost += 1;
                }
                depth -= 1;
            }
        }
        if depth >= LEVELS_MAX as u64 {
            return null_mut();
        }
        let level = level_at(nest, depth);
        write_volatile(addr_of_mut!((*level).frame), 0);
        // An interrupt from here on takes the next place, and finds this one's call not begun.
        write_volatile(addr_of_mut!((*nest).depth), depth + 1);
        write_volatile(addr_of_mut!((*level).start), BEFORE_START);
        level
    }
}

/// Notes when a call began, as the last thing it does, and returns it; 0 if the call is lost. `STACK`:
/// frames lie on the task's stack.
#[inline(always)]
pub(crate) fn enter<const STACK: bool>(frame: u64) -> u64 {
    let cpu = this_cpu();
    let slot = slot_of(cpu);
    let task = current(cpu);
    // SAFETY: `slot` points into SLOTS, `level` into NESTS. Volatile, because an interrupt may come
    // in anywhere.
    unsafe {
        (*slot).entries += 1;
        let level = match NESTS.get_ptr_mut(&task) {
            Some(nest) => push::<STACK>(nest, slot, frame),
            None => first(task),
        };
        if level.is_null() {
            (*slot).lost += 1;
            return 0;
        }
        write_volatile(addr_of_mut!((*level).frame), frame);
        write_volatile(addr_of_mut!((*level).handler), handler());
        write_volatile(addr_of_mut!((*level).within), 0);
        write_volatile(addr_of_mut!((*level).probes), 0);
        let start = bpf_ktime_get_ns();
        write_volatile(addr_of_mut!((*level).start), start);
        start
    }
}

/// Where a call is that others have not left; the number of levels if nowhere. `own_start`: when it began,
/// 0 if that is not known.
#[inline(never)]
fn find(nest: *mut Nest, frame: u64, own_start: u64) -> u64 {
    let mut at = 0;
    while at < LEVELS_MAX as u64 {
        // SAFETY: `nest` points into NESTS.
        unsafe {
            if at >= read_volatile(addr_of!((*nest).depth)) {
                break;
            }
            let level = level_at(nest, at);
            if (*level).frame == frame
                && (*level).handler == handler()
                && (own_start == 0 || (*level).start == own_start)
            {
                return at;
            }
        }
        at += 1;
    }
    LEVELS_MAX as u64
}

/// The same number, which the verifier takes for any number: else it follows the rest of the program once for each
/// level at which [`find`] may end. `any` is one that it does not know.
#[inline(always)]
fn forget(mut at: u64, any: u64) -> u64 {
    // SAFETY: adds the difference of two equal numbers, which the verifier does not know to be equal.
    unsafe {
        asm!(
            "{zero} = {any}",
            "{zero} -= {any}",
            "{at} += {zero}",
            zero = out(reg) _,
            any = in(reg) any,
            at = inout(reg) at,
            options(pure, nomem, nostack),
        );
    }
    at
}

/// Counts a call that leaves at `now`, and adds it to the call around it. `own_start`: the start that the call
/// itself keeps, 0 if its entry was not seen; `None` where it keeps none. Long on purpose: one straight path for
/// each call, in which every exit counts what it leaves behind and the verifier sees all pointers checked.
#[inline(always)]
pub(crate) fn leave<const MAGNITUDE: u32, const COUNTERS: usize>(
    frame: u64,
    now: u64,
    own_start: Option<u64>,
) {
    let cpu = this_cpu();
    let slot = slot_of(cpu);
    let task = current(cpu);
    // SAFETY: `slot` points into SLOTS, levels into NESTS.
    unsafe {
        if own_start == Some(0) {
            // What is at its place is of an earlier call, whose exit was not run.
            (*slot).unpaired_exits += 1;
            return;
        }
        let own_start = own_start.unwrap_or(0);
        let Some(nest) = NESTS.get_ptr_mut(&task) else {
            (*slot).unpaired_exits += 1;
            return;
        };
        let mut at = read_volatile(addr_of!((*nest).depth)).wrapping_sub(1);
        let mut level = level_at(nest, at);
        if (*level).frame != frame
            || (*level).handler != handler()
            || (own_start != 0 && (*level).start != own_start)
        {
            at = forget(find(nest, frame, own_start), now);
            if at >= LEVELS_MAX as u64 {
                (*slot).unpaired_exits += 1;
                return;
            }
            level = level_at(nest, at);
        }
        let start = read_volatile(addr_of!((*level).start));
        let within = read_volatile(addr_of!((*level).within));
        let probes = read_volatile(addr_of!((*level).probes));
        let duration = now.wrapping_sub(start);
        // The number of paired calls: these programs keep no start here.
        (*slot).start += 1;
        let place = place_of(slot);
        record::<MAGNITUDE, COUNTERS>(place, duration);
        let own = duration.saturating_sub(within);
        // What is within was measured and in part estimated; the whole was measured, and its parts are no
        // more than it.
        let probes = probes.min(duration - own);
        if !is_backwards(duration) {
            record_own::<MAGNITUDE, COUNTERS>(place, own, probes);
        }
        if at == 0 {
            // An interrupt before this adds to a call that has left, which is as good as nothing.
            let _ = NESTS.remove(&task);
            return;
        }
        let around = level_at(nest, at - 1);
        if start >= read_volatile(addr_of!((*around).start)) && !is_backwards(duration) {
            let done = bpf_ktime_get_ns();
            let outside = outside();
            add(addr_of_mut!((*around).within), done.wrapping_sub(start) + outside);
            let own_probes = done.wrapping_sub(now) + outside + inside();
            add(addr_of_mut!((*around).probes), own_probes + probes);
        }
        write_volatile(addr_of_mut!((*nest).depth), at);
    }
}
