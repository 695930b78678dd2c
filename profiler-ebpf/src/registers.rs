//! Programs that are given the registers: on kprobes and kretprobes.
//!
//! A call's frame is the place of its return address on the stack. At the entry the stack pointer
//! says where that is. At the exit the kernel does not always fill in the stack pointer (6.14 to
//! 6.18 do not), but the registers themselves lie on that stack, at a distance that is the same for
//! all calls: user space measures it with [`calibrate_enter`] and [`calibrate_leave`].

use core::ptr::{addr_of_mut, read_volatile, write_volatile};

use aya_ebpf::{
    EbpfContext, helpers::generated::bpf_get_current_pid_tgid, macros::kprobe,
    programs::ProbeContext,
};
use profiler_common::layout::operand;

use crate::{
    memory::clock,
    pairing,
    state::{exit_shift, handler, slot_of},
};

#[inline(always)]
pub(crate) fn stack_pointer(ctx: &ProbeContext) -> u64 {
    // SAFETY: the context is the kernel's registers, of which the verifier allows every word; user space puts the word's place
    // into the instruction.
    unsafe { read_volatile(ctx.as_ptr().byte_add(operand::STACK_POINTER as usize).cast::<u64>()) }
}

#[inline(always)]
pub(crate) fn frame_at_exit(ctx: &ProbeContext) -> u64 {
    (ctx.as_ptr() as u64).wrapping_add(exit_shift())
}

/// On entry: notes when the call began, as the last thing it does.
#[kprobe]
pub fn regs_enter(ctx: ProbeContext) -> u32 {
    pairing::enter(stack_pointer(&ctx));
    0
}

/// On exit: reads the clock as the first thing it does.
#[inline(always)]
fn leave<const MAGNITUDE: u32, const COUNTERS: usize>(ctx: &ProbeContext) {
    let now = clock();
    pairing::leave::<MAGNITUDE, COUNTERS>(frame_at_exit(ctx), now);
}
with_digits!(kprobe, regs_leave_2, regs_leave_3, leave(ProbeContext) -> u32);

/// Does nothing, at entries, exits and both.
#[kprobe]
pub fn regs_empty(_ctx: ProbeContext) -> u32 {
    0
}

/// Reads the clock and does nothing else, at entries, exits and both.
#[kprobe]
pub fn regs_clock(_ctx: ProbeContext) -> u32 {
    clock();
    0
}

/// Whether this runs for the process that measures the distance; its id takes the handler's place.
#[inline(always)]
fn is_own() -> bool {
    // SAFETY: helper without arguments.
    (unsafe { bpf_get_current_pid_tgid() }) >> 32 == handler()
}

/// Notes where the return address of a call lies.
#[kprobe]
pub fn calibrate_enter(ctx: ProbeContext) -> u32 {
    if is_own() {
        let slot = slot_of(0);
        // SAFETY: `slot` points into SLOTS.
        unsafe { write_volatile(addr_of_mut!((*slot).frame), stack_pointer(&ctx)) }
    }
    0
}

/// Notes where the registers lie when that call leaves.
#[kprobe]
pub fn calibrate_leave(ctx: ProbeContext) -> u32 {
    if is_own() {
        let slot = slot_of(0);
        // SAFETY: `slot` points into SLOTS.
        unsafe { write_volatile(addr_of_mut!((*slot).start), ctx.as_ptr() as u64) }
    }
    0
}
