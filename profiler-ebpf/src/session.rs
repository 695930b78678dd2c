//! One program for entry and exit, with eight bytes that the kernel keeps for each call between them:
//! fsession on the trampoline, kprobe.session on function probes.
//!
//! So a start needs neither slot nor frame, and nesting, sleep, migration and interrupts cost
//! nothing.

use core::{
    arch::asm,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::{
    EbpfContext,
    macros::{fentry, kprobe},
    programs::{FEntryContext, ProbeContext},
};
use profiler_common::layout::kfunc;

use crate::{
    memory::clock,
    place::place_of,
    record::record_last,
    state::{end, slot_of, this_cpu},
};

/// Calls a function of the kernel with the context. Its number stands for its BTF id, which user
/// space knows and puts in its place.
macro_rules! call_kernel {
    ($number:expr, $ctx:expr) => {{
        let result: u64;
        // SAFETY: clobbers what any call does; the verifier checks it.
        unsafe {
            asm!(
                "call {number}",
                number = const $number,
                inlateout("r1") $ctx => _,
                lateout("r0") result,
                lateout("r2") _,
                lateout("r3") _,
                lateout("r4") _,
                lateout("r5") _,
            );
        }
        result
    }};
}

/// Counts the call at its two ends, by function probes. Its start is emptied at the exit, because the kernel may give the
/// bytes to another call whose entry it does not run.
#[inline(always)]
fn probe_session<const MAGNITUDE: u32, const COUNTERS: usize>(ctx: &ProbeContext) {
    let ctx = ctx.as_ptr();
    let leaves = call_kernel!(kfunc::IS_RETURN, ctx);
    // The low byte is the truth value.
    if leaves as u8 == 0 {
        let cookie = call_kernel!(kfunc::COOKIE, ctx) as *mut u64;
        enter(cookie);
        end();
    }
    let now = clock();
    let cookie = call_kernel!(kfunc::COOKIE, ctx) as *mut u64;
    // SAFETY: `cookie` points to the call's eight bytes.
    let start = unsafe {
        let start = read_volatile(cookie);
        write_volatile(cookie, 0);
        start
    };
    if start == 0 {
        leave_unpaired();
        end();
    }
    leave::<MAGNITUDE, COUNTERS>(now.wrapping_sub(start));
}

/// The same on the trampoline, which clears the bytes before it runs the entry program (commit 2d419c44658f, kernel 7.0): what
/// is in them tells the exit from the entry, and costs no call of the kernel's. So that one register is kept across calls, and
/// not two, this reads the clock after the start and not before.
#[inline(always)]
fn trampoline_session<const MAGNITUDE: u32, const COUNTERS: usize>(ctx: &FEntryContext) {
    let ctx = ctx.as_ptr();
    let cookie = call_kernel!(kfunc::COOKIE, ctx);
    // SAFETY: `cookie` points to the call's eight bytes.
    let start = unsafe { read_volatile(cookie as *const u64) };
    if start == 0 {
        let (kept, leaves): (*mut u64, u64);
        // SAFETY: as `call_kernel`. The cookie is kept where the context was, which ends as the argument.
        unsafe {
            asm!(
                "r6 = r0",
                "call {number}",
                number = const kfunc::IS_RETURN,
                inlateout("r0") cookie => leaves,
                inlateout("r1") ctx => _,
                lateout("r2") _,
                lateout("r3") _,
                lateout("r4") _,
                lateout("r5") _,
                out("r6") kept,
            );
        }
        // The low byte is the truth value. An exit without a start is of a call whose entry program the kernel skipped.
        if leaves as u8 == 0 {
            enter(kept);
        } else {
            leave_unpaired();
        }
        end();
    }
    /// `bpf_ktime_get_ns`
    const CLOCK: i32 = 5;
    let duration: u64;
    // SAFETY: helper without arguments, which clobbers what any call does. Written out so that the start is kept where the
    // context was, and the duration after it.
    unsafe {
        asm!(
            "r6 = r1",
            "call {number}",
            "r0 -= r6",
            number = const CLOCK,
            inlateout("r1") start => _,
            lateout("r0") duration,
            lateout("r2") _,
            lateout("r3") _,
            lateout("r4") _,
            lateout("r5") _,
            out("r6") _,
        );
    }
    leave::<MAGNITUDE, COUNTERS>(duration);
}

/// Notes when a call began, as the last thing it does.
#[inline(always)]
fn enter(cookie: *mut u64) {
    let slot = slot_of(this_cpu());
    // SAFETY: `slot` points into SLOTS, `cookie` to the call's eight bytes.
    unsafe {
        (*slot).entries += 1;
        write_volatile(cookie, clock());
    }
}

#[inline(always)]
fn leave<const MAGNITUDE: u32, const COUNTERS: usize>(duration: u64) {
    let slot = slot_of(this_cpu());
    // SAFETY: `slot` points into SLOTS.
    let place = unsafe {
        // The number of paired calls: these programs keep no start here.
        (*slot).start += 1;
        place_of(slot)
    };
    record_last::<MAGNITUDE, COUNTERS>(place, duration);
}

#[inline(always)]
fn leave_unpaired() {
    // SAFETY: `slot_of` points into SLOTS.
    unsafe { (*slot_of(this_cpu())).unpaired_exits += 1 }
}

with_digits!(fentry, fsession_2, fsession_3, trampoline_session(FEntryContext) -> i32);
with_digits!(kprobe, ksession_2, ksession_3, probe_session(ProbeContext) -> u32);
