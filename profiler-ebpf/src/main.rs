//! The BPF programs: a pair per handler that times its calls and counts them in the kernel.
//!
//! Every handler has its own instance of the pair and its own [`SLOTS`], [`RECORDS`] and constants,
//! so no program looks anything up by handler. The fast path is short on purpose: what an entry
//! program does before it reads the clock is added to no call's time, and neither is what an exit
//! program does after it read it.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![expect(
    missing_docs,
    unreachable_pub,
    reason = "the attributes of programs make functions of their own"
)]

use core::{
    arch::asm,
    ptr::{addr_of, addr_of_mut, read_volatile, write_volatile},
};

use aya_ebpf::{
    EbpfContext as _,
    bindings::{BPF_ANY, BPF_NOEXIST},
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_map_lookup_elem},
    macros::{fentry, fexit, map},
    maps::{Array, HashMap},
    programs::{FEntryContext, FExitContext},
};
use profiler_common::{
    bucket::{COUNTERS_2, COUNTERS_3, HIGHEST_NS, MAGNITUDE_2, MAGNITUDE_3, index_above},
    layout::{DISPLACED_MAX, Displaced, Record, SLOTS_MAX, Slot},
};

/// The handler's number in the session; user space sets it and freezes it.
#[unsafe(no_mangle)]
static HANDLER: u64 = 0;

/// Possible CPUs of this machine; user space sets it and freezes it, so that the verifier knows it.
#[unsafe(no_mangle)]
static CPUS: u64 = 0;

/// Key of the first record of the phase that is written; user space flips it.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".data")]
static mut PHASE: u32 = 0;

/// The running call of each CPU.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".bss")]
static mut SLOTS: [Slot; SLOTS_MAX] = [Slot {
    frame: 0,
    start: 0,
    entries: 0,
    lost: 0,
    unpaired_exits: 0,
    displaced: 0,
    migrated: 0,
    reserved: 0,
}; SLOTS_MAX];

/// The histograms; user space creates it with the size that the precision wants.
#[map]
static RECORDS: Array<Record<COUNTERS_3>> = Array::with_max_entries(1, 0);

/// Starts that had to leave their slot.
#[map]
static DISPLACED: HashMap<u64, Displaced> = HashMap::with_max_entries(DISPLACED_MAX, 0);

#[inline(always)]
fn cpus() -> u64 {
    // SAFETY: a static of this program, read as the loader left it; volatile because the
    // compiler must not take the initial value for the final one.
    unsafe { read_volatile(addr_of!(CPUS)) }
}

/// The CPU that this runs on.
#[inline(always)]
fn this_cpu() -> u64 {
    // SAFETY: helper without arguments. User space refuses machines with more CPUs than slots, so
    // the mask changes nothing; it is what the verifier needs, and shorter than a comparison.
    (unsafe { bpf_get_smp_processor_id() }) as u64 & (SLOTS_MAX as u64 - 1)
}

/// The slot of a CPU, which must be below [`SLOTS_MAX`].
#[inline(always)]
fn slot_of(cpu: u64) -> *mut Slot {
    // SAFETY: the map has SLOTS_MAX slots.
    unsafe { addr_of_mut!(SLOTS).cast::<Slot>().add(cpu as usize) }
}

/// Frame of the running call: the address of the context, which lies in the trampoline's stack
/// frame and so is the same for both programs of one call and no other call's.
#[inline(always)]
fn frame_of(context: *mut core::ffi::c_void) -> u64 {
    context as u64
}

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

/// On entry: notes when the call began, as the last thing it does.
#[fentry]
pub fn enter(ctx: FEntryContext) -> i32 {
    let frame = frame_of(ctx.as_ptr());
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
    0
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
        let start = read_volatile(addr_of!((*slot).start));
        let displaced = Displaced { start, handler: read_volatile(addr_of!(HANDLER)) };
        if DISPLACED.insert(running, displaced, BPF_NOEXIST.into()).is_err() {
            // Full, or the leftover of an earlier call whose exit was never run.
            (*slot).lost += 1;
            let _ = DISPLACED.insert(running, displaced, BPF_ANY.into());
        }
        (*slot).displaced += 1;
        if exchange_frame(addr_of_mut!((*slot).frame), running, frame) != running {
            // The call has migrated and left meanwhile: it took its start from the slot.
            let _ = DISPLACED.remove(running);
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
    // SAFETY: the entry belongs to this call alone, which removes it itself.
    unsafe {
        if let Some(found) = DISPLACED.get(frame) {
            let start = found.start;
            let _ = DISPLACED.remove(frame);
            return start;
        }
        (*slot).unpaired_exits += 1;
    }
    0
}

/// The common part of the exit programs; `now` is the clock read first thing.
#[inline(always)]
fn leave<const MAGNITUDE: u32, const COUNTERS: usize>(ctx: &FExitContext, now: u64) -> i32 {
    let frame = frame_of(ctx.as_ptr());
    let cpu = this_cpu();
    let slot = slot_of(cpu);
    let mut key = 0;
    // SAFETY: `slot` points into SLOTS, `key` to this function's stack; `record` is checked and
    // points to a value of RECORDS, whose size user space made that of `Record<COUNTERS>`.
    unsafe {
        // Put on the stack while the CPU is at hand: it need not outlive what follows.
        write_volatile(&raw mut key, read_volatile(addr_of!(PHASE)) + cpu as u32);
        // The start before the frame: an interrupt between the two changes the frame, too.
        let mut start = read_volatile(addr_of!((*slot).start));
        if read_volatile(addr_of!((*slot).frame)) == frame {
            vacate(slot);
        } else {
            start = find_start(slot, frame);
            if start == 0 {
                return 0;
            }
        }
        let mut duration = now.wrapping_sub(start);
        // Worked out here, so that one value and not two has to be kept across the helper's call.
        asm!("/* {0} */", inout(reg) duration);
        let record =
            bpf_map_lookup_elem(addr_of!(RECORDS).cast_mut().cast(), (&raw const key).cast())
                .cast::<Record<COUNTERS>>();
        if record.is_null() {
            return 0;
        }
        if duration < 1 << MAGNITUDE {
            count(record, duration as usize);
        } else {
            record_long::<MAGNITUDE, COUNTERS>(record, duration);
        }
    }
    0
}

#[inline(always)]
unsafe fn count<const COUNTERS: usize>(record: *mut Record<COUNTERS>, counter: usize) {
    // SAFETY: the caller's record has COUNTERS counters, and `counter` is below that.
    unsafe { *addr_of_mut!((*record).counts).cast::<u32>().add(counter) += 1 }
}

/// Counts a duration whose counter spans more than a nanosecond, with what the counter leaves out.
#[inline(never)]
unsafe fn record_long<const MAGNITUDE: u32, const COUNTERS: usize>(
    record: *mut Record<COUNTERS>,
    duration: u64,
) -> u64 {
    // SAFETY: as for `leave`.
    unsafe {
        let head = addr_of_mut!((*record).head);
        let mut counted = duration;
        if duration > HIGHEST_NS {
            if duration > i64::MAX as u64 {
                // The clock may step back by nanoseconds between two CPUs.
                count(record, 0);
                return 0;
            }
            (*head).over_range += 1;
            counted = HIGHEST_NS;
        }
        (*head).sum += duration;
        if !duration > (*head).not_min {
            (*head).not_min = !duration;
        }
        if duration > (*head).max {
            (*head).max = duration;
        }
        let counter = index_above::<MAGNITUDE>(counted);
        if counter < COUNTERS {
            count(record, counter);
        }
    }
    0
}

/// On exit, with 2 significant digits: reads the clock as the first thing it does.
#[fexit]
pub fn leave_2(ctx: FExitContext) -> i32 {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    leave::<MAGNITUDE_2, COUNTERS_2>(&ctx, now)
}

/// On exit, with 3 significant digits: reads the clock as the first thing it does.
#[fexit]
pub fn leave_3(ctx: FExitContext) -> i32 {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    leave::<MAGNITUDE_3, COUNTERS_3>(&ctx, now)
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

#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 4] = *b"GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
