//! What a handler's programs share: constants set by user space, the running call of each CPU, and
//! the maps.

use core::ptr::{addr_of, addr_of_mut, read_volatile};

use aya_ebpf::{
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::map,
    maps::{Array, HashMap},
};
use profiler_common::{
    bucket::COUNTERS_3,
    layout::{DISPLACED_MAX, Displaced, Frame, NESTS_MAX, Nest, Record, SLOTS_MAX, Slot},
};

/// The handler's number in the session; user space sets it and freezes it.
#[unsafe(no_mangle)]
static HANDLER: u64 = 0;

/// Possible CPUs of this machine; user space sets it and freezes it, so that the verifier knows it.
#[unsafe(no_mangle)]
static CPUS: u64 = 0;

/// From the registers that a return probe is given to the return address's place on the stack, in
/// bytes; user space measures it, sets it and freezes it.
#[unsafe(no_mangle)]
static EXIT_SHIFT: u64 = 0;

/// What a call's probes add to the call around it, besides what lies between the call's start and the
/// end of its exit program, in nanoseconds; user space measures it, sets it and freezes it.
#[unsafe(no_mangle)]
static OUTSIDE: u64 = 0;

/// What its probes add to a call's own duration, in nanoseconds; set as the one above.
#[unsafe(no_mangle)]
static INSIDE: u64 = 0;

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
    paired: 0,
}; SLOTS_MAX];

/// The histograms; user space creates it with the size that the precision wants.
#[map]
pub(crate) static RECORDS: Array<Record<COUNTERS_3>> = Array::with_max_entries(1, 0);

/// Starts that had to leave their slot.
#[map]
pub(crate) static DISPLACED: HashMap<Frame, Displaced> =
    HashMap::with_max_entries(DISPLACED_MAX, 0);

/// Calls under way of each task.
#[map]
pub(crate) static NESTS: HashMap<u64, Nest> = HashMap::with_max_entries(NESTS_MAX, 0);

// Constants are read as volatile because the compiler must not take the initial value for the
// final one.

#[inline(always)]
pub(crate) fn handler() -> u64 {
    // SAFETY: a static of this program, read as the loader left it.
    unsafe { read_volatile(addr_of!(HANDLER)) }
}

#[inline(always)]
pub(crate) fn cpus() -> u64 {
    // SAFETY: a static of this program, read as the loader left it.
    unsafe { read_volatile(addr_of!(CPUS)) }
}

#[inline(always)]
pub(crate) fn exit_shift() -> u64 {
    // SAFETY: a static of this program, read as the loader left it.
    unsafe { read_volatile(addr_of!(EXIT_SHIFT)) }
}

#[inline(always)]
pub(crate) fn outside() -> u64 {
    // SAFETY: a static of this program, read as the loader left it.
    unsafe { read_volatile(addr_of!(OUTSIDE)) }
}

#[inline(always)]
pub(crate) fn inside() -> u64 {
    // SAFETY: a static of this program, read as the loader left it.
    unsafe { read_volatile(addr_of!(INSIDE)) }
}

#[inline(always)]
pub(crate) fn phase() -> u32 {
    // SAFETY: a static of this program that user space alone writes.
    unsafe { read_volatile(addr_of!(PHASE)) }
}

/// The CPU that this runs on.
#[inline(always)]
pub(crate) fn this_cpu() -> u64 {
    // SAFETY: helper without arguments. User space refuses machines with more CPUs than slots, so
    // the mask changes nothing; it is what the verifier needs, and shorter than a comparison.
    (unsafe { bpf_get_smp_processor_id() }) as u64 & (SLOTS_MAX as u64 - 1)
}

/// The slot of a CPU, which must be below [`SLOTS_MAX`].
#[inline(always)]
pub(crate) fn slot_of(cpu: u64) -> *mut Slot {
    // SAFETY: the map has SLOTS_MAX slots.
    unsafe { addr_of_mut!(SLOTS).cast::<Slot>().add(cpu as usize) }
}

/// Reads the clock for its cost alone.
#[inline(always)]
pub(crate) fn read_clock() {
    // SAFETY: helper without arguments.
    let _ = unsafe { bpf_ktime_get_ns() };
}
