//! What [`pairing`](crate::pairing) does to memory that others change: a step each, between which interrupts and other CPUs may
//! come in.

use core::{
    arch::asm,
    ptr::{read_volatile, write_volatile},
};

pub(crate) use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use profiler_common::layout::Slot;

/// # Safety
/// `place` must be a field of a slot.
#[inline(always)]
pub(crate) unsafe fn load(place: *const u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { read_volatile(place) }
}

/// # Safety
/// `place` must be a field of a slot.
#[inline(always)]
pub(crate) unsafe fn store(place: *mut u64, value: u64) {
    // SAFETY: the caller's.
    unsafe { write_volatile(place, value) }
}

/// Replaces `*place` by `new` if it is `old`; returns what was there.
#[inline(always)]
pub(crate) fn exchange(place: *mut u64, old: u64, new: u64) -> u64 {
    let found;
    // SAFETY: one atomic instruction on a field of a slot, which the verifier checks; written
    // out because the target's `core` has no compare and exchange.
    unsafe {
        asm!(
            "r0 = cmpxchg_64(r1 + 0, r0, r2)",
            inlateout("r0") old => found,
            in("r1") place,
            in("r2") new,
        );
    }
    found
}

/// Frees a slot: one instruction, where the compiler would take two.
#[inline(always)]
pub(crate) fn vacate(slot: *mut Slot) {
    const { assert!(core::mem::offset_of!(Slot, frame) == 0) };
    // SAFETY: a store of 8 bytes to a field of a slot, which the verifier checks.
    unsafe { asm!("*(u64 *)({slot} + 0) = 0", slot = in(reg) slot) }
}

/// The same pointer in another register.
#[inline(always)]
pub(crate) fn same(slot: *mut Slot) -> *mut Slot {
    let copy;
    // SAFETY: copies a register.
    unsafe { asm!("{0} = {1}", out(reg) copy, in(reg) slot) }
    copy
}

/// Nanoseconds of the monotonic clock.
#[inline(always)]
pub(crate) fn clock() -> u64 {
    // SAFETY: helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}
