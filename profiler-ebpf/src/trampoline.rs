//! fentry and fexit: programs on the trampoline that ftrace calls at a function's entry.
//!
//! A call's frame is the address of the context, which lies in the trampoline's stack frame and so is
//! the same for both programs of one call and no other call's.

use aya_ebpf::{
    EbpfContext as _,
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};

use crate::{memory::clock, pairing};

/// On entry: notes when the call began, as the last thing it does.
#[fentry]
pub fn enter(ctx: FEntryContext) -> i32 {
    pairing::enter(ctx.as_ptr() as u64);
    0
}

/// On exit: reads the clock as the first thing it does.
#[inline(always)]
fn leave<const MAGNITUDE: u32, const COUNTERS: usize>(ctx: &FExitContext) {
    let now = clock();
    pairing::leave::<MAGNITUDE, COUNTERS>(ctx.as_ptr() as u64, now);
}
with_digits!(fexit, leave_2, leave_3, leave(FExitContext) -> i32);

/// The same where the kernel may take a task off its CPU within a program.
#[inline(always)]
fn preempted_leave<const MAGNITUDE: u32, const COUNTERS: usize>(ctx: &FExitContext) {
    let now = clock();
    pairing::leave_preempted::<MAGNITUDE, COUNTERS>(ctx.as_ptr() as u64, now);
}
with_digits!(fexit, preempted_leave_2, preempted_leave_3, preempted_leave(FExitContext) -> i32);

/// Does nothing: with [`empty_leave`] it shows what any pair of probes costs.
#[fentry]
pub fn empty_enter(_ctx: FEntryContext) -> i32 {
    0
}

/// Does nothing.
#[fexit]
pub fn empty_leave(_ctx: FExitContext) -> i32 {
    0
}

/// Reads the clock and does nothing else: with [`clock_leave`] it shows the limit below which no pair that
/// measures can cost.
#[fentry]
pub fn clock_enter(_ctx: FEntryContext) -> i32 {
    clock();
    0
}

/// Reads the clock and does nothing else.
#[fexit]
pub fn clock_leave(_ctx: FExitContext) -> i32 {
    clock();
    0
}
