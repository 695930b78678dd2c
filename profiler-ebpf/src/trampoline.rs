//! fentry and fexit: programs on the trampoline that ftrace calls at a function's entry.
//!
//! A call's frame is the address of the context, which lies in the trampoline's stack frame and so is
//! the same for both programs of one call and no other call's.

use aya_ebpf::{
    EbpfContext as _,
    helpers::generated::bpf_ktime_get_ns,
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};
use profiler_common::bucket::{COUNTERS_2, COUNTERS_3, MAGNITUDE_2, MAGNITUDE_3};

use crate::{pairing, state::read_clock};

/// On entry: notes when the call began, as the last thing it does.
#[fentry]
pub fn enter(ctx: FEntryContext) -> i32 {
    pairing::enter(ctx.as_ptr() as u64);
    0
}

/// On exit, with 2 significant digits: reads the clock as the first thing it does.
#[fexit]
pub fn leave_2(ctx: FExitContext) -> i32 {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    pairing::leave::<MAGNITUDE_2, COUNTERS_2>(ctx.as_ptr() as u64, now);
    0
}

/// On exit, with 3 significant digits: reads the clock as the first thing it does.
#[fexit]
pub fn leave_3(ctx: FExitContext) -> i32 {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    pairing::leave::<MAGNITUDE_3, COUNTERS_3>(ctx.as_ptr() as u64, now);
    0
}

/// On exit, where the kernel may take a task off its CPU within a program, with 2 significant digits.
#[fexit]
pub fn preempted_leave_2(ctx: FExitContext) -> i32 {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    pairing::leave_preempted::<MAGNITUDE_2, COUNTERS_2>(ctx.as_ptr() as u64, now);
    0
}

/// On exit, where the kernel may take a task off its CPU within a program, with 3 significant digits.
#[fexit]
pub fn preempted_leave_3(ctx: FExitContext) -> i32 {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    pairing::leave_preempted::<MAGNITUDE_3, COUNTERS_3>(ctx.as_ptr() as u64, now);
    0
}

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
    read_clock();
    0
}

/// Reads the clock and does nothing else.
#[fexit]
pub fn clock_leave(_ctx: FExitContext) -> i32 {
    read_clock();
    0
}
